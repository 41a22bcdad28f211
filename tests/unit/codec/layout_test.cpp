#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/codec/bf16.hpp>
#include <rivulet/codec/e3m0.hpp>
#include <rivulet/codec/layout.hpp>

#include "unit/codec/own_codecs.hpp"
#include "unit/codec/scattered_model.hpp"

namespace {

using rivulet::fragment_layout;
using rivulet::tile_part;
using rivulet::tile_range;
using rivulet_test::scattered_model;
using e3m0 = rivulet::codec::e3m0<64>;

/// The fragment of scattered_model, tile by tile, and where the codes of e3m0<64> begin.
struct {
  std::size_t parameter, offset, begin, count, first, byte;
} const tiles[] = {{4, 0, 0, 1, 0, 0},
                   {0, 4096, 0, 4096, 1, 34},
                   {0, 4096, 4096, 1809, 4097, 34 * 65},
                   {2, 4096, 0, 4096, 5906, 34 * 94},
                   {1, 0, 0, 4096, 10002, 34 * 158},
                   {1, 0, 4096, 1, 14098, 34 * 222},
                   {5, 0, 0, 333, 14099, 34 * 223},
                   {2, 8192, 0, 4096, 14432, 34 * 229}};
constexpr std::size_t total_bytes = 34 * 293;

TEST_CASE("layout: it counts values, tiles and bytes slice by slice") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  CHECK(layout.values() == 1 + 5905 + 4096 + 4097 + 333 + 4096);
  CHECK(layout.tiles() == 8);
  CHECK(layout.slices().size() == 6);
  CHECK(layout.all().first == 0);
  CHECK(layout.all().count == 8);
  for (std::size_t t = 0; t < 8; ++t) {
    CAPTURE(t);
    tile_part const part = layout.tile(t);
    CHECK(part.from->parameter == tiles[t].parameter);
    CHECK(part.from->offset == tiles[t].offset);
    CHECK(part.begin == tiles[t].begin);
    CHECK(part.count == tiles[t].count);
    CHECK(part.tile == part.begin);
    CHECK(part.values == part.count);
    CHECK(part.first() == tiles[t].first);
    CHECK(part.byte == tiles[t].byte);
    CHECK(layout.byte_of(t) == tiles[t].byte);
    CHECK(layout.value_of(t) == tiles[t].first);
  }
  CHECK(layout.byte_of(8) == total_bytes);
  CHECK(layout.value_of(8) == layout.values());
}

TEST_CASE("layout: every codec has its own places") {
  scattered_model const m;
  fragment_layout const singles = m.layout(rivulet::codec::bf16{});
  fragment_layout const keyed = m.layout(rivulet_test::own_keyed{});
  fragment_layout const whole = m.layout(rivulet_test::own_global{});
  for (std::size_t t = 0; t <= 8; ++t) {
    CAPTURE(t);
    std::size_t const value = t < 8 ? tiles[t].first : m.fragment.size();
    CHECK(singles.byte_of(t) == 2 * value);
    CHECK(keyed.byte_of(t) == 2 * value + 8 * t);
    CHECK(whole.byte_of(t) == 0);  // no codes of its own
    CHECK(whole.value_of(t) == value);
  }
}

TEST_CASE("layout: means of another codec have a layout of their own, over the same values") {
  scattered_model m;
  using own_keyed = rivulet_test::own_keyed;
  fragment_layout layout(m.fragment, m.params, e3m0{}, own_keyed{});
  for (std::size_t t = 0; t <= 8; ++t) {
    CAPTURE(t);
    CHECK(layout.byte_of(t) == (t < 8 ? tiles[t].byte : total_bytes));
    CHECK(layout.mean().byte_of(t) == m.layout(own_keyed{}).byte_of(t));
    CHECK(layout.mean().value_of(t) == layout.value_of(t));
  }
  fragment_layout const same(m.fragment, m.params, e3m0{}, e3m0{});
  CHECK(same.mean().byte_of(8) == total_bytes);
  fragment_layout const whole(m.fragment, m.params, rivulet_test::own_global{}, e3m0{});
  CHECK(whole.byte_of(8) == 0);
  CHECK(whole.mean().byte_of(8) == total_bytes);

  std::vector<float> moved(10001);
  m.params.rebind("a", moved);
  layout.bind(m.params);
  CHECK(layout.mean().slices()[1].local == reinterpret_cast<std::byte*>(moved.data() + 4096));
  fragment_layout const copy = layout;
  layout = fragment_layout(m.fragment, m.params, e3m0{});
  CHECK(copy.mean().byte_of(8) == m.layout(own_keyed{}).byte_of(8));
  CHECK(copy.mean().tile(7).from == &copy.mean().slices()[5]);
}

/// A tile codec whose size hangs on an option.
struct sized : rivulet_test::own_keyed {
  std::size_t size = 10;
  [[nodiscard]] std::size_t tile_bytes(std::size_t) const { return size; }
};

TEST_CASE("layout: means of the same codec with other options too") {
  scattered_model const m;
  fragment_layout const layout(m.fragment, m.params, sized{{}, 10}, sized{{}, 30});
  CHECK(layout.byte_of(8) == 80);
  CHECK(layout.mean().byte_of(8) == 240);
}

TEST_CASE("layout: local pointers are those of elements") {
  scattered_model m;
  fragment_layout const layout = m.layout(e3m0{});
  auto const at = [](auto& tensor, std::size_t i) {
    return reinterpret_cast<std::byte*>(tensor.data() + i);
  };
  CHECK(layout.slices()[0].local == at(m.d, 0));
  CHECK(layout.slices()[1].local == at(m.a, 4096));
  CHECK(layout.slices()[2].local == at(m.c, 4096));
  CHECK(layout.slices()[3].local == at(m.b, 0));
  CHECK(layout.slices()[4].local == at(m.e, 0));
  CHECK(layout.slices()[5].local == at(m.c, 8192));
  CHECK(layout.slices()[2].element == rivulet::element_type::float16);
}

TEST_CASE("layout: a chunk is a part of its tile") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  tile_part const all = layout.tile(2);  // 1809 values from 4096 of its slice on
  rivulet::codec::chunk const whole = all.in_tile();
  CHECK(whole.first == 0);
  CHECK(whole.size == 1809);
  CHECK(whole.count == 1809);
  for (std::size_t i = 0; i < 1809; i += 512) {
    tile_part const part = all.chunk(i, 512);
    CHECK(part.begin == 4096 + i);
    CHECK(part.count == (i == 1536 ? 273 : 512));
    CHECK(part.first() == 4097 + i);
    CHECK(part.byte == all.byte);
    CHECK(part.tile == all.tile);
    CHECK(part.in_tile().first == i);
    CHECK(part.in_tile().size == part.count);
    CHECK(part.in_tile().count == 1809);
  }
  CHECK(all.chunk(0, 4096).count == 1809);
}

TEST_CASE("layout: shards are all tiles in order, nearly equal") {
  scattered_model const m;
  fragment_layout const layout = m.layout(e3m0{});
  for (int parts = 1; parts <= 20; ++parts) {
    CAPTURE(parts);
    std::size_t next = 0;
    for (int r = 0; r < parts; ++r) {
      tile_range const shard = layout.shard(r, parts);
      CHECK(shard.first == next);
      CHECK(shard.count <=
            (8 + static_cast<std::size_t>(parts) - 1) / static_cast<std::size_t>(parts));
      CHECK(shard.count >= 8 / static_cast<std::size_t>(parts));
      next = shard.end();
    }
    CHECK(next == 8);
  }
}

TEST_CASE("layout: one slice and full tiles only") {
  std::vector<float> values(3 * 4096);
  rivulet::parameter_set params;
  params.add("a", rivulet::layer(0), values);
  fragment_layout const layout({"f", {{0, 0, 3 * 4096}}}, params, rivulet_test::own_keyed{});
  CHECK(layout.tiles() == 3);
  CHECK(layout.tile(2).count == 4096);
  CHECK(layout.byte_of(3) == 3 * 8200);  // no empty tile behind
}

TEST_CASE("layout: a parameter in device memory is refused by name") {
  std::vector<float> values(3);
  rivulet::parameter_set set;
  set.add_ref("on.device", rivulet::head,
              rivulet::tensor_ref::of(values.data(), 3, rivulet::memory_space::cuda));
  rivulet::fragment const all{"all", {{0, 0, 3}}};
  CHECK_THROWS_WITH_AS(
      fragment_layout(all, set, e3m0{}),
      "rivulet: parameter 'on.device' lies in device memory, which these passes do "
      "not reach",
      rivulet::precondition_error);
}

TEST_CASE("layout: bind follows a tensor that has moved") {
  scattered_model m;
  fragment_layout layout = m.layout(e3m0{});
  std::vector<float> moved(10001);
  m.params.rebind("a", moved);
  CHECK(layout.slices()[1].local == reinterpret_cast<std::byte*>(m.a.data() + 4096));
  layout.bind(m.params);
  CHECK(layout.slices()[1].local == reinterpret_cast<std::byte*>(moved.data() + 4096));
  CHECK(layout.slices()[2].local == reinterpret_cast<std::byte*>(m.c.data() + 4096));
}

}  // namespace
