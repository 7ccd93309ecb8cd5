// Whether kernels of a graph may become one: every graph of up to six nodes, every set of its nodes, and every second
// set behind a first one, against the definition taken at its word.
#include "shim/plan/rewrite_rules.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fibshim {
namespace {

constexpr uint32_t kMostNodes = 6;

// after[i]: the nodes behind node i, a bit each. Edges lead to higher numbers in `order`.
struct SmallGraph {
  uint32_t count;
  uint32_t after[kMostNodes] = {};
};

// Bit k of `edges` is the k-th pair (i, j), i < j, of places; `names` says which node has a place.
SmallGraph make_graph(uint32_t count, uint32_t edges, const uint32_t* names) {
  SmallGraph graph{count};
  uint32_t bit = 0;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t j = i + 1; j < count; ++j, ++bit) {
      if ((edges >> bit & 1) != 0) graph.after[names[i]] |= 1u << names[j];
    }
  }
  return graph;
}

class Numbered {
 public:
  explicit Numbered(const SmallGraph& graph) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < graph.count; ++i) {
      first_[i] = used;
      for (uint32_t j = 0; j < graph.count; ++j) {
        if ((graph.after[i] >> j & 1) != 0) next_[used++] = j;
      }
    }
    first_[graph.count] = used;
    dag_ = {graph.count, first_, next_, position_, sibling_};
    uint32_t room[2 * kMostNodes];
    is_ordered_ = order_nodes(&dag_, room);
  }
  Numbered(const Numbered&) = delete;
  Numbered& operator=(const Numbered&) = delete;

  bool is_ordered() const { return is_ordered_; }
  bool may(uint32_t set) {
    const uint32_t count = list(set);
    const bool may = may_become_one(dag_, nodes_, count, seen_, room_);
    for (const uint8_t seen : seen_) EXPECT_EQ(seen, 0);
    return may;
  }
  void merge(uint32_t set) { become_one(&dag_, nodes_, list(set)); }

 private:
  uint32_t list(uint32_t set) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < dag_.count; ++i) {
      if ((set >> i & 1) != 0) nodes_[count++] = i;
    }
    return count;
  }

  uint32_t first_[kMostNodes + 1] = {};
  uint32_t next_[kMostNodes * kMostNodes] = {};
  uint32_t position_[kMostNodes] = {};
  uint32_t sibling_[kMostNodes] = {};
  uint32_t nodes_[kMostNodes] = {};
  uint8_t seen_[kMostNodes] = {};
  uint32_t room_[kMostNodes] = {};
  Dag dag_{};
  bool is_ordered_ = false;
};

// The definition: with every group one node, no way leads from a node back to itself. Ways are followed edge by edge,
// as often as there are nodes.
bool has_no_circle(const SmallGraph& graph, const std::vector<uint32_t>& groups) {
  uint32_t group_of[kMostNodes];
  for (uint32_t i = 0; i < graph.count; ++i) {
    group_of[i] = 1u << i;
    for (const uint32_t group : groups) {
      if ((group >> i & 1) != 0) group_of[i] = group;
    }
  }
  const auto step = [&](uint32_t from) {
    uint32_t to = 0;
    for (uint32_t i = 0; i < graph.count; ++i) {
      if ((from >> i & 1) == 0) continue;
      for (uint32_t j = 0; j < graph.count; ++j) {
        const bool leaves = (graph.after[i] >> j & 1) != 0 && (group_of[i] >> j & 1) == 0;
        if (leaves) to |= group_of[j];
      }
    }
    return to;
  };
  for (uint32_t i = 0; i < graph.count; ++i) {
    uint32_t reached = step(group_of[i]);
    for (uint32_t n = 0; n < graph.count; ++n) reached |= step(reached);
    if ((reached & group_of[i]) != 0) return false;
  }
  return true;
}

// Checks every set, and every second one. Returns how many answers there were.
uint64_t check_all_sets(const SmallGraph& graph) {
  Numbered fresh(graph);
  EXPECT_TRUE(fresh.is_ordered());
  const uint32_t all = 1u << graph.count;
  uint64_t answers = 0;
  for (uint32_t one = 1; one < all; ++one) {
    if (__builtin_popcount(one) < 2) continue;
    const bool may = fresh.may(one);
    EXPECT_EQ(may, has_no_circle(graph, {one}));
    ++answers;
    if (!may) continue;
    Numbered merged(graph);
    merged.merge(one);
    for (uint32_t other = 1; other < all; ++other) {
      if ((other & one) != 0 || __builtin_popcount(other) < 2) continue;
      EXPECT_EQ(merged.may(other), has_no_circle(graph, {one, other}));
      ++answers;
    }
  }
  return answers;
}

TEST(RewriteRules, EveryGraphOfUpToSixNodes) {
  uint64_t answers = 0;
  for (uint32_t count = 2; count <= kMostNodes; ++count) {
    const uint32_t names[kMostNodes] = {0, 1, 2, 3, 4, 5};
    const uint32_t graphs = 1u << (count * (count - 1) / 2);
    for (uint32_t edges = 0; edges < graphs && !testing::Test::HasFailure(); ++edges) {
      answers += check_all_sets(make_graph(count, edges, names));
    }
  }
  EXPECT_GT(answers, 2'000'000u);
}

// Numbers need not be in the order of the edges.
TEST(RewriteRules, NumbersAreNames) {
  const uint32_t names[][kMostNodes] = {{5, 4, 3, 2, 1, 0}, {3, 0, 5, 1, 4, 2}};
  for (const auto& order : names) {
    for (uint32_t edges = 0; edges < 1u << 15 && !testing::Test::HasFailure(); edges += 7) {
      check_all_sets(make_graph(kMostNodes, edges, order));
    }
  }
}

TEST(RewriteRules, ACircleHasNoOrder) {
  SmallGraph graph{3};
  graph.after[0] = 2;
  graph.after[1] = 4;
  graph.after[2] = 1;
  EXPECT_FALSE(Numbered(graph).is_ordered());
}

// [begin, end) of a kernel; 'r' read, 'w' written, 'd' written and dead.
struct Row {
  std::vector<std::tuple<uint64_t, uint64_t, int, char>> ranges;
  bool is_fine;
};

TEST(RewriteRules, BuffersThatOverlap) {
  const Row rows[] = {
      // a -> sums -> c
      {{{100, 200, 0, 'r'}, {200, 300, 0, 'd'}, {200, 300, 1, 'r'}, {300, 400, 1, 'w'}}, true},
      // the same, and the sums stay
      {{{100, 200, 0, 'r'}, {200, 300, 0, 'w'}, {200, 300, 1, 'r'}, {300, 400, 1, 'w'}}, true},
      // it reads a part of them, from the beginning; from later on; beyond them
      {{{200, 300, 0, 'w'}, {200, 250, 1, 'r'}}, true},
      {{{200, 300, 0, 'w'}, {204, 250, 1, 'r'}}, false},
      {{{200, 300, 0, 'w'}, {200, 301, 1, 'r'}}, false},
      // the second writes what the first reads: at either end, by a byte
      {{{100, 200, 0, 'r'}, {199, 300, 1, 'w'}}, false},
      {{{100, 200, 0, 'r'}, {50, 101, 1, 'w'}}, false},
      {{{100, 200, 0, 'r'}, {200, 300, 1, 'w'}, {50, 100, 1, 'w'}}, true},
      // one kernel's own buffers are its own matter, but for what is left out
      {{{100, 200, 0, 'r'}, {100, 200, 0, 'w'}}, true},
      {{{100, 200, 0, 'r'}, {150, 250, 0, 'd'}}, false},
      // two write: the same; a part of it; where the first is left out; where the second is
      {{{100, 200, 0, 'w'}, {100, 200, 1, 'w'}}, true},
      {{{100, 200, 0, 'w'}, {100, 150, 1, 'w'}}, false},
      {{{100, 200, 0, 'd'}, {100, 150, 1, 'w'}}, true},
      {{{100, 200, 0, 'w'}, {100, 150, 1, 'd'}}, false},
  };
  for (const Row& row : rows) {
    std::vector<BufferRange> ranges;
    for (const auto& [begin, end, member, kind] : row.ranges) {
      ranges.push_back({begin, end, static_cast<uint8_t>(member), kind != 'r', kind == 'd'});
    }
    const char* const conflict = find_conflict(ranges.data(), static_cast<uint32_t>(ranges.size()));
    EXPECT_EQ(conflict == nullptr, row.is_fine)
        << &row - rows << ": " << (conflict == nullptr ? "no conflict" : conflict);
  }
}

}  // namespace
}  // namespace fibshim
