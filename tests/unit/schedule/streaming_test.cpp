#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <rivulet/schedule/streaming.hpp>

namespace {

using rivulet::first_sync;
using rivulet::sync_event;
using rivulet::schedule::streaming;
using kind = sync_event::kind;

std::vector<sync_event> events(streaming const& schedule, std::int64_t step) {
  std::vector<sync_event> result;
  schedule.for_each_event(step, [&](sync_event e) { result.push_back(e); });
  return result;
}

/// Receives of earlier sends, sends, receives of these sends: each by (send step, fragment).
bool in_order(std::vector<sync_event> const& of_step, std::int64_t step) {
  auto const key = [&](sync_event const& e) {
    int const group = e.what == kind::send ? 1 : e.sent_at < step ? 0 : 2;
    return std::tuple(group, e.sent_at, e.fragment);
  };
  return std::is_sorted(of_step.begin(), of_step.end(),
                        [&](auto const& a, auto const& b) { return key(a) < key(b); });
}

/// Runs the schedule for four rounds; tells the first thing that is wrong, or nothing.
std::string flaw(int h, int p, int tau, first_sync first, std::vector<int> offsets = {}) {
  streaming const schedule(h, tau, p, first, offsets);
  for (int f = 0; offsets.size() < static_cast<std::size_t>(p); ++f) offsets.push_back(f * h / p);
  std::vector<std::int64_t> last_send(static_cast<std::size_t>(p), 0);
  std::vector<std::optional<std::int64_t>> flying(static_cast<std::size_t>(p));
  int in_flight = 0;
  int most = 0;
  for (std::int64_t step = 1; step <= 4 * h; ++step) {
    std::vector<sync_event> const due = events(schedule, step);
    if (!in_order(due, step)) return "order";
    for (sync_event const& e : due) {
      auto const f = static_cast<std::size_t>(e.fragment);
      if (e.what == kind::send) {
        if (flying.at(f)) return "two of one fragment in flight";
        if (e.sent_at != step) return "a send of another step";
        int const offset = offsets[f];
        int const begin =
            offset == 0 || first == first_sync::after_full_round ? h + offset : offset;
        if (step != (last_send[f] == 0 ? begin : last_send[f] + h)) return "a send not due";
        last_send[f] = step;
        flying[f] = step;
        most = std::max(most, ++in_flight);
      } else {
        if (flying.at(f) != e.sent_at || step != e.sent_at + tau) return "a receive not due";
        flying[f].reset();
        --in_flight;
      }
    }
    for (std::size_t f = 0; f < flying.size(); ++f) {
      if (flying[f] && step >= *flying[f] + tau) return "a receive is missing";
      bool const started = last_send[f] != 0;
      if (started ? step >= last_send[f] + h : step >= 2 * h) return "a send is missing";
    }
  }
  if (most != schedule.max_in_flight()) return "max_in_flight";
  return "";
}

TEST_CASE("streaming: the whole grid of H, P, tau and first sync") {
  for (int h = 1; h <= 24; ++h) {
    std::vector<int> counts;
    for (int p = 1; p <= h; ++p) counts.push_back(p);
    counts.insert(counts.end(), {h + 1, 2 * h, 3 * h + 1});
    for (int const p : counts) {
      for (int tau = 0; tau <= h; ++tau) {
        for (first_sync const first : {first_sync::after_full_round, first_sync::at_offset}) {
          std::string const found = flaw(h, p, tau, first);
          if (found.empty()) continue;
          FAIL_CHECK("H " << h << " P " << p << " tau " << tau << ": " << found);
        }
      }
    }
  }
}

TEST_CASE("streaming: offsets as given") {
  for (std::vector<int> const& offsets :
       {std::vector<int>{0, 0, 0}, {4, 3, 2}, {6, 0, 6}, {1, 1, 5}}) {
    for (int tau = 0; tau <= 7; ++tau) {
      for (first_sync const first : {first_sync::after_full_round, first_sync::at_offset}) {
        CHECK(flaw(7, 3, tau, first, offsets) == "");
      }
    }
  }
}

TEST_CASE("streaming: the paper's example of two fragments and H 100") {
  for (first_sync const first : {first_sync::after_full_round, first_sync::at_offset}) {
    streaming const schedule(100, 0, 2, first);
    CHECK(schedule.offset(0) == 0);
    CHECK(schedule.offset(1) == 50);
    CHECK(schedule.first_send(0) == 100);
    CHECK(schedule.first_send(1) == (first == first_sync::at_offset ? 50 : 150));
  }
}

TEST_CASE("streaming: the events of a step by hand") {
  SUBCASE("tau 0 receives what it has just sent") {
    streaming const schedule(2, 0, 4, first_sync::at_offset);  // offsets 0 0 1 1
    CHECK(events(schedule, 1) == std::vector<sync_event>{{kind::send, 2, 1},
                                                         {kind::send, 3, 1},
                                                         {kind::receive, 2, 1},
                                                         {kind::receive, 3, 1}});
    CHECK(schedule.max_in_flight() == 2);
  }
  SUBCASE("tau H receives before it sends again") {
    streaming const schedule(3, 3, 1, first_sync::at_offset);
    CHECK(events(schedule, 3) == std::vector<sync_event>{{kind::send, 0, 3}});
    CHECK(events(schedule, 4).empty());
    CHECK(events(schedule, 6) ==
          std::vector<sync_event>{{kind::receive, 0, 3}, {kind::send, 0, 6}});
  }
  SUBCASE("nothing before the first step") {
    streaming const schedule(2, 1, 2, first_sync::at_offset);
    CHECK(events(schedule, 0).empty());
    CHECK(events(schedule, -2).empty());
  }
}

TEST_CASE("streaming: workers of different tau send at the same steps") {
  streaming const first(10, 0, 3, first_sync::after_full_round);
  for (int tau = 1; tau <= 10; ++tau) {
    streaming const other(10, tau, 3, first_sync::after_full_round);
    for (std::int64_t step = 1; step <= 60; ++step) {
      auto const sends = [&](streaming const& schedule) {
        auto list = events(schedule, step);
        std::erase_if(list, [](sync_event const& e) { return e.what == kind::receive; });
        return list;
      };
      REQUIRE(sends(first) == sends(other));
    }
  }
}

TEST_CASE("streaming: what the constructor was told") {
  std::vector<int> const offsets = {5, 0};
  streaming const schedule(9, 4, 2, first_sync::at_offset, offsets);
  CHECK(schedule.sync_every() == 9);
  CHECK(schedule.overlap_steps() == 4);
  CHECK(schedule.fragments() == 2);
  CHECK(schedule.first() == first_sync::at_offset);
  CHECK(schedule.offset(0) == 5);
  CHECK(schedule.is_sent(0, 5));
  CHECK_FALSE(schedule.is_sent(0, 6));
  CHECK_FALSE(schedule.is_sent(1, 0));
}

TEST_CASE("streaming: large numbers do not overflow") {
  int const h = 2'000'000'000;
  streaming const schedule(h, 1, 3, first_sync::after_full_round);
  CHECK(schedule.offset(2) == 1'333'333'333);
  CHECK(schedule.first_send(2) == 3'333'333'333);
  CHECK(schedule.is_sent(2, 5'333'333'333));
}

TEST_CASE("streaming: what it refuses, by text") {
  struct {
    int h, tau, p;
    std::vector<int> offsets;
    char const* text;
  } const cases[] = {
      {0, 0, 1, {}, "rivulet: sync_every (H) = 0 must be at least 1"},
      {-5, 0, 1, {}, "rivulet: sync_every (H) = -5 must be at least 1"},
      {5,
       6,
       1,
       {},
       "rivulet: overlap_steps (tau) = 6 must be from 0 to sync_every (H) = 5, or a fragment would "
       "be in flight twice"},
      {5,
       -1,
       1,
       {},
       "rivulet: overlap_steps (tau) = -1 must be from 0 to sync_every (H) = 5, or a fragment "
       "would "
       "be in flight twice"},
      {5, 0, 0, {}, "rivulet: the number of fragments (P) = 0 must be at least 1"},
      {5, 0, 2, {1}, "rivulet: offsets: 1 given for 2 fragments"},
      {5, 0, 2, {1, 2, 3}, "rivulet: offsets: 3 given for 2 fragments"},
      {5, 0, 2, {1, 5}, "rivulet: offsets: 5 must be from 0 to sync_every (H) - 1 = 4"},
      {5, 0, 2, {-1, 2}, "rivulet: offsets: -1 must be from 0 to sync_every (H) - 1 = 4"}};
  for (auto const& c : cases) {
    CHECK_THROWS_WITH_AS(streaming(c.h, c.tau, c.p, first_sync::at_offset, c.offsets), c.text,
                         rivulet::precondition_error);
  }
}

}  // namespace
