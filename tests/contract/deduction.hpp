#pragma once

/// \file
/// The types that class template deduction gives: the codec is the one that was passed, on every
/// compiler. Including this file is the test.

#include <type_traits>
#include <utility>

#include <rivulet/rivulet.hpp>

namespace rivulet_test {

template <class C, class O, class... E>
using deduced_engine = decltype(rivulet::streaming_diloco{
    std::declval<rivulet::parameter_set&>(), std::declval<rivulet::comm::local&>(),
    rivulet::sync_config{}, rivulet::partition::whole_model{}, std::declval<C>(), std::declval<O>(),
    std::declval<E>()...});

template <class C, class O, class E>
using named_engine = rivulet::streaming_diloco<rivulet::comm::local, C, O, E>;

/// An executor of the user's own.
struct foreign_executor {
  template <class F>
  void for_each_tile(std::size_t tiles, F const& tile) const {
    for (std::size_t i = 0; i < tiles; ++i) tile(i);
  }
};

template <class C, class O>
inline constexpr bool deduces =
    std::is_same_v<deduced_engine<C, O>, named_engine<C, O, rivulet::exec::host>>&& std::is_same_v<
        deduced_engine<C, O, foreign_executor>, named_engine<C, O, foreign_executor>>;

static_assert(deduces<rivulet::codec::float32, rivulet::outer::sgd>);
static_assert(deduces<rivulet::codec::float32, rivulet::outer::nesterov>);
static_assert(deduces<rivulet::codec::bf16, rivulet::outer::sgd>);
static_assert(deduces<rivulet::codec::bf16, rivulet::outer::nesterov>);
static_assert(deduces<rivulet::codec::e3m0<64>, rivulet::outer::sgd>);
static_assert(deduces<rivulet::codec::e3m0<64>, rivulet::outer::nesterov>);
static_assert(deduces<rivulet::codec::e3m0<32>, rivulet::outer::nesterov>);

// `e3m0{}` without arguments is the one of 64 values a block.
static_assert(
    std::is_same_v<
        decltype(rivulet::streaming_diloco{std::declval<rivulet::parameter_set&>(),
                                           std::declval<rivulet::comm::local&>(),
                                           rivulet::sync_config{}, rivulet::partition::strided{},
                                           rivulet::codec::e3m0{}, rivulet::outer::nesterov{}}),
        named_engine<rivulet::codec::e3m0<64>, rivulet::outer::nesterov, rivulet::exec::host>>);

template <class C, class... More>
using deduced_mean = decltype(rivulet::data_parallel{std::declval<rivulet::parameter_set&>(),
                                                     std::declval<rivulet::comm::local&>(),
                                                     std::declval<C>(), std::declval<More>()...});

template <class C, class E>
using named_mean = rivulet::data_parallel<rivulet::comm::local, C, E>;

static_assert(std::is_same_v<deduced_mean<rivulet::codec::bf16>,
                             named_mean<rivulet::codec::bf16, rivulet::exec::host>>);
static_assert(std::is_same_v<deduced_mean<rivulet::codec::e3m0<64>, foreign_executor>,
                             named_mean<rivulet::codec::e3m0<64>, foreign_executor>>);
static_assert(std::is_same_v<deduced_mean<rivulet::codec::float32, rivulet::exec::host, int>,
                             named_mean<rivulet::codec::float32, rivulet::exec::host>>);

}  // namespace rivulet_test
