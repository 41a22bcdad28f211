#pragma once

/// \file
/// The codecs that are measured.

#include <memory>
#include <string>
#include <vector>

#include <rivulet/codec/array.hpp>
#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/chunked_top_k.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/float32.hpp>
#include <rivulet/codec/fp16.hpp>
#include <rivulet/codec/fp8.hpp>
#include <rivulet/codec/int2.hpp>
#include <rivulet/codec/int8.hpp>
#include <rivulet/codec/mx.hpp>
#include <rivulet/codec/nvfp4.hpp>
#include <rivulet/codec/refit.hpp>
#include <rivulet/codec/sign.hpp>
#include <rivulet/codec/stochastic.hpp>
#include <rivulet/codec/table16.hpp>
#include <rivulet/codec/top_k.hpp>

#include "codec_bench/operations.hpp"
#include "codec_bench/passes.hpp"

namespace codec_bench {

/// The name of a codec as one would write it: "mxfp4", "e3m0<64>", "top_k<bf16>".
template <template <std::size_t> class C, std::size_t Block>
std::string label_of(C<Block> const&) {
  return std::string{C<Block>::name}.append("<").append(std::to_string(Block)).append(">");
}
template <class C>
std::string label_of(C const& codec) {
  std::string result{C::name};
  if constexpr (requires { codec.values; }) {
    result.append("<").append(label_of(codec.values)).append(">");
  }
  return result;
}
template <class C>
std::string label_of(rivulet::codec::stochastic<C> const& codec) {
  return std::string{"stochastic<"}.append(label_of(codec.codec)).append(">");
}
template <class C, std::size_t Candidates, rivulet::codec::fit Fit>
std::string label_of(rivulet::codec::refit<C, Candidates, Fit> const& codec) {
  std::string const count = std::to_string(Candidates);
  return std::string{"refit<"}.append(label_of(codec.codec)).append(", ").append(count).append(">");
}

/// A codec with its type erased, so that what is timed is compiled once.
template <class C>
any_codec erase(C const& codec) {
  any_codec result;
  result.label = label_of(codec);
  result.decode = [=](auto in, auto values) { rivulet::codec::decode(codec, in, values); };
  result.accumulate = [=](auto in, auto sums) { rivulet::codec::accumulate(codec, in, sums); };
  if constexpr (rivulet::Codec<C>) {
    result.bytes = [=](std::size_t n) { return rivulet::codec::encoded_bytes(codec, n); };
    result.encode = [=](auto values, auto out) { rivulet::codec::encode(codec, values, out, 1); };
  } else {
    result.divisible = false;
    result.bytes = [=](std::size_t n) { return codec.message_bytes(n); };
    // As an engine does it: with an encoder that has its memory already.
    result.encode = [=, encoder = std::make_shared<typename C::encoder>()](auto values, auto out) {
      encoder->begin(codec, values.size());
      encoder->offer(values.data(), values.size());
      encoder->finish(codec, out.data());
    };
  }
  return result;
}

/// The same with its passes.
template <class C>
any_codec erase_with_passes(C const& codec) {
  any_codec result = erase(codec);
  result.block = C::block_size;
  result.pass = [=, label = result.label](pass_part what, std::size_t values) {
    return running_pass(codec, what, values, label);
  };
  return result;
}

/// The same with random rounding, beside the codec itself.
template <class C>
any_codec erase_stochastic(C const& codec) {
  any_codec result = erase(rivulet::codec::stochastic<C>{codec});
  result.nearest = std::make_shared<any_codec const>(erase(codec));
  return result;
}

/// The class of the goals for 4 bits.
inline std::vector<any_codec> four_bit_codecs() {
  using namespace rivulet::codec;
  return {erase_with_passes(e3m0<32>{}),       erase_with_passes(e3m0<64>{}),
          erase_with_passes(lloyd_max4<32>{}), erase_with_passes(lloyd_max4<64>{}),
          erase_with_passes(nf4<32>{}),        erase_with_passes(nf4<64>{}),
          erase_with_passes(int4<32>{}),       erase_with_passes(int4<64>{}),
          erase_with_passes(mxfp4{})};
}

inline std::vector<any_codec> stochastic_codecs() {
  using namespace rivulet::codec;
  return {erase_stochastic(e3m0<32>{}), erase_stochastic(e3m0<64>{})};
}

inline std::vector<any_codec> half_codecs() {
  using namespace rivulet::codec;
  return {erase(bf16{}), erase(fp16{})};
}

/// The exact largest values of a whole array, one in a hundred.
inline any_codec top_1_percent() {
  return erase(rivulet::codec::top_k<rivulet::codec::bf16>{.fraction = 0.01});
}

/// Those without a goal for all of them; a codec of your own goes here.
inline std::vector<any_codec> other_codecs() {
  using namespace rivulet::codec;
  return {erase(float32{}),
          erase(int8<64>{}),
          erase(fp8<128>{}),
          erase(mxfp8{}),
          erase(nvfp4{}),
          erase(e3m0<256>{}),
          erase(nf4<256>{}),
          erase(int4<256>{}),
          erase(int2<64>{}),
          erase(sign<256>{}),
          erase(refit<e3m0<64>>{}),
          erase(refit<e3m0<32>, 8>{}),
          erase(refit<e3m0<64>, 8>{}),
          erase(refit<e3m0<256>, 8>{}),
          erase(stochastic<e3m0<256>>{}),
          erase(chunked_top_k<int2<64>>{}),
          top_1_percent()};
}

inline std::vector<any_codec> all_codecs() {
  std::vector<any_codec> all;
  for (auto const& group :
       {four_bit_codecs(), stochastic_codecs(), half_codecs(), other_codecs()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

}  // namespace codec_bench
