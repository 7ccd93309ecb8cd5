// Whether kernels of a graph may become one: compares the rules with a literal implementation of
// their definition, for every graph of up to six nodes, every set of its nodes, and every second
// set after a first one.
#include "shim/plan/rewrite_rules.h"

#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fibshim {
namespace {

constexpr uint32_t kMostNodes = 6;

// after[i]: the nodes after node i, one bit each. Edges lead to later places in the order.
struct SmallGraph {
  uint32_t count;
  uint32_t after[kMostNodes] = {};
};

// Bit k of `edges` is the edge of the k-th pair (i, j), i < j, of places. `names`: their nodes.
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

// All orders in which the nodes can run.
std::vector<std::vector<uint32_t>> linear_orders(const SmallGraph& graph) {
  std::vector<std::vector<uint32_t>> orders;
  std::vector<uint32_t> order;
  uint32_t done = 0;
  const std::function<void()> go_on = [&] {
    if (order.size() == graph.count) orders.push_back(order);
    for (uint32_t i = 0; i < graph.count; ++i) {
      bool is_ready = (done >> i & 1) == 0;
      for (uint32_t j = 0; is_ready && j < graph.count; ++j) {
        is_ready = (done >> j & 1) != 0 || (graph.after[j] >> i & 1) == 0;
      }
      if (!is_ready) continue;
      done |= 1u << i;
      order.push_back(i);
      go_on();
      order.pop_back();
      done &= ~(1u << i);
    }
  };
  go_on();
  return orders;
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
    dag_ = {graph.count, first_, next_, position_, sibling_, reach_};
    uint32_t room[2 * kMostNodes];
    is_ordered_ = order_nodes(&dag_, room);
  }
  Numbered(const Numbered&) = delete;
  Numbered& operator=(const Numbered&) = delete;

  bool is_ordered() const { return is_ordered_; }
  bool may(uint32_t set) {
    const uint32_t count = list(set);
    const bool may = may_become_one(dag_, nodes_, count, seen_, room_);
    if (memcmp(seen_, kNothingSeen, sizeof seen_) != 0) ADD_FAILURE() << "nodes stay marked";
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
  uint32_t reach_[kMostNodes] = {};
  uint32_t nodes_[kMostNodes] = {};
  static constexpr uint8_t kNothingSeen[kMostNodes] = {};
  uint8_t seen_[kMostNodes] = {};
  uint32_t room_[kMostNodes] = {};
  Dag dag_{};
  bool is_ordered_ = false;
};

// The definition: if every group is one node, no path leads from a node back to itself. Follows
// paths edge by edge, as often as there are nodes.
bool has_no_circle(const SmallGraph& graph, std::initializer_list<uint32_t> groups) {
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

// Checks every set, and every second set. Returns the number of answers.
uint64_t check_all_sets(const SmallGraph& graph) {
  Numbered fresh(graph);
  EXPECT_TRUE(fresh.is_ordered());
  const uint32_t all = 1u << graph.count;
  uint64_t answers = 0;
  for (uint32_t one = 1; one < all; ++one) {
    if (__builtin_popcount(one) < 2) continue;
    const bool may = fresh.may(one);
    if (may != has_no_circle(graph, {one})) ADD_FAILURE() << one;
    ++answers;
    if (!may) continue;
    Numbered merged(graph);
    merged.merge(one);
    for (uint32_t other = 1; other < all; ++other) {
      if ((other & one) != 0 || __builtin_popcount(other) < 2) continue;
      if (merged.may(other) != has_no_circle(graph, {one, other}))
        ADD_FAILURE() << one << " " << other;
      ++answers;
    }
  }
  return answers;
}

// From the first node to a group behind all others, from that to another that begins before the first node, and from there
// to the second one: each group lets a later one be seen.
TEST(RewriteRules, AWayBackThroughTwoGroups) {
  constexpr uint32_t kNodes = 6;
  const uint32_t first[kNodes + 1] = {0, 1, 2, 2, 3, 3, 3};
  const uint32_t next[] = {2, 5, 4};
  uint32_t position[kNodes];
  uint32_t sibling[kNodes];
  uint32_t reach[kNodes];
  for (uint32_t i = 0; i < kNodes; ++i) position[i] = sibling[i] = reach[i] = i;
  Dag dag = {kNodes, first, next, position, sibling, reach};
  uint8_t seen[kNodes] = {};
  uint32_t room[kNodes];
  const uint32_t wanted[] = {1, 2};
  const uint32_t behind[] = {3, 5};
  const uint32_t around[] = {0, 4};
  EXPECT_TRUE(may_become_one(dag, wanted, 2, seen, room));
  EXPECT_TRUE(may_become_one(dag, behind, 2, seen, room));
  become_one(&dag, behind, 2);
  EXPECT_TRUE(may_become_one(dag, wanted, 2, seen, room));
  EXPECT_TRUE(may_become_one(dag, around, 2, seen, room));
  become_one(&dag, around, 2);
  EXPECT_FALSE(may_become_one(dag, wanted, 2, seen, room));
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

// A check that uses only the orders, not the edges: the kernels of a set may become one launch if
// in some order they run directly one after the other. Then a node that reads what one of them
// writes, and so runs after it, must run after all of them in every such order.
TEST(RewriteRules, EveryOrderOfEveryGraphOfUpToSixNodes) {
  const uint32_t names[kMostNodes] = {0, 1, 2, 3, 4, 5};
  uint64_t answers = 0;
  for (uint32_t count = 2; count <= kMostNodes; ++count) {
    const uint32_t graphs = 1u << (count * (count - 1) / 2);
    for (uint32_t edges = 0; edges < graphs && !testing::Test::HasFailure(); ++edges) {
      const SmallGraph graph = make_graph(count, edges, names);
      const auto orders = linear_orders(graph);
      Numbered numbered(graph);
      ASSERT_TRUE(numbered.is_ordered());
      for (uint32_t set = 1; set < 1u << count; ++set) {
        const auto size = static_cast<uint32_t>(__builtin_popcount(set));
        if (size < 2) continue;
        bool may = false;
        for (const auto& order : orders) {
          // Finds the first of them, and counts how many follow it directly.
          uint32_t at = 0;
          while ((set >> order[at] & 1) == 0) ++at;
          uint32_t run = 0;
          while (at + run < count && (set >> order[at + run] & 1) != 0) ++run;
          if (run != size) continue;
          may = true;
          uint32_t behind = 0;
          for (uint32_t i = at + run; i < count; ++i) behind |= 1u << order[i];
          // Takes all possible readers: what holds for all holds for some.
          uint32_t readers = 0;
          for (uint32_t i = 0; i < count; ++i) {
            if ((set >> i & 1) != 0) readers |= graph.after[i] & ~set;
          }
          if ((readers & ~behind) != 0) ADD_FAILURE() << edges << " " << set;
        }
        if (numbered.may(set) != may) ADD_FAILURE() << count << " nodes, " << edges << ", " << set;
        ++answers;
      }
    }
  }
  EXPECT_GT(answers, 1'000'000u);
}

// The numbers of nodes need not follow the order of the edges.
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

// [begin, end), the kernel, and 'r' read, 'w' written, 'd' written and dead, 'f' written first.
struct Row {
  std::vector<std::tuple<uint64_t, uint64_t, int, char>> ranges;
  bool is_fine;
  bool is_tied = true;  // the pattern says that ranges with the same begin are one buffer
};

TEST(RewriteRules, BuffersThatOverlap) {
  const Row rows[] = {
      // a -> sums -> c
      {{{100, 200, 0, 'r'}, {200, 300, 0, 'd'}, {200, 300, 1, 'r'}, {300, 400, 1, 'w'}}, true},
      // the same, and the sums stay
      {{{100, 200, 0, 'r'}, {200, 300, 0, 'w'}, {200, 300, 1, 'r'}, {300, 400, 1, 'w'}}, true},
      // the second kernel reads a part of them, from the beginning; from later on; beyond them
      {{{200, 300, 0, 'w'}, {200, 250, 1, 'r'}}, true},
      {{{200, 300, 0, 'w'}, {204, 250, 1, 'r'}}, false},
      {{{200, 300, 0, 'w'}, {200, 301, 1, 'r'}}, false},
      // the second writes what the first reads: at either end, by a byte
      {{{100, 200, 0, 'r'}, {199, 300, 1, 'w'}}, false},
      {{{100, 200, 0, 'r'}, {50, 101, 1, 'w'}}, false},
      {{{100, 200, 0, 'r'}, {200, 300, 1, 'w'}, {50, 100, 1, 'w'}}, true},
      // the same, in place; a part of it; written first; dead
      {{{100, 200, 0, 'r'}, {100, 200, 1, 'w'}}, true},
      {{{100, 200, 0, 'r'}, {100, 200, 1, 'w'}, {100, 200, 2, 'r'}}, true},
      {{{100, 200, 0, 'r'}, {100, 150, 1, 'w'}}, false},
      {{{100, 150, 0, 'r'}, {100, 200, 1, 'w'}}, false},
      {{{100, 200, 0, 'r'}, {100, 200, 1, 'f'}}, false},
      {{{100, 200, 0, 'r'}, {100, 200, 1, 'd'}}, false},
      // the buffers of one kernel may overlap, except one that is left out
      {{{100, 200, 0, 'r'}, {100, 200, 0, 'w'}}, true},
      {{{100, 200, 0, 'r'}, {150, 250, 0, 'd'}}, false},
      // both write: the same; a part of it; if the first's is left out; if the second's is
      {{{100, 200, 0, 'w'}, {100, 200, 1, 'w'}}, true},
      {{{100, 200, 0, 'w'}, {100, 150, 1, 'w'}}, false},
      {{{100, 200, 0, 'd'}, {100, 150, 1, 'w'}}, true},
      {{{100, 200, 0, 'w'}, {100, 150, 1, 'd'}}, false},
      // the first kernel's is written first: the second writes there; reads there; both are 'f';
      // only the second's is
      {{{100, 200, 0, 'f'}, {150, 250, 1, 'w'}}, true},
      {{{100, 200, 0, 'f'}, {150, 250, 1, 'r'}}, false},
      {{{100, 200, 0, 'f'}, {150, 250, 1, 'f'}}, false},
      {{{100, 200, 0, 'w'}, {150, 250, 1, 'f'}}, false},
      {{{100, 200, 0, 'f'}, {100, 200, 1, 'w'}}, true, false},
      // and a third kernel reads what the second wrote; the rest of what the first wrote
      {{{100, 200, 0, 'f'}, {150, 250, 1, 'w'}, {150, 250, 2, 'r'}}, false},
      {{{100, 200, 0, 'f'}, {150, 250, 1, 'w'}, {100, 150, 2, 'r'}}, true},
      // like rows above, but ranges with the same begin are not one buffer
      {{{100, 200, 0, 'r'}, {200, 300, 0, 'd'}, {200, 300, 1, 'r'}, {300, 400, 1, 'w'}},
       false,
       false},
      {{{200, 300, 0, 'w'}, {200, 300, 1, 'r'}}, false, false},
      {{{100, 200, 0, 'w'}, {100, 200, 1, 'w'}}, false, false},
      {{{100, 200, 0, 'r'}, {100, 200, 1, 'w'}}, false, false},
      {{{100, 200, 0, 'd'}, {100, 150, 1, 'w'}}, true, false},
  };
  for (const Row& row : rows) {
    std::vector<BufferRange> ranges;
    for (const auto& [begin, end, member, kind] : row.ranges) {
      const auto group = static_cast<uint8_t>(row.is_tied ? begin / 50 : ranges.size());
      ranges.push_back(
          {begin, end, static_cast<uint8_t>(member), kind != 'r', kind == 'd', group, kind == 'f'});
    }
    const char* const conflict = find_conflict(ranges.data(), static_cast<uint32_t>(ranges.size()));
    EXPECT_EQ(conflict == nullptr, row.is_fine)
        << &row - rows << ": " << (conflict == nullptr ? "no conflict" : conflict);
  }
}

// Models what the kernels do, one after the other, to a few cells of memory, and what one launch
// may do, which knows only which ranges are one buffer, and reads and writes in any order. If the
// rules allow the launch, no difference may be observable.
class Cells {
 public:
  static constexpr uint32_t kCells = 3;
  static constexpr uint8_t kMembers = 3;

  explicit Cells(const std::vector<BufferRange>& ranges) : ranges_(ranges) {}

  bool is_sound() const {
    for (const BufferRange& range : ranges_) {
      for (uint64_t cell = range.begin; cell < range.end; ++cell) {
        if (range.is_written ? !writes_right(cell) : !reads_right(range, cell)) return false;
      }
    }
    return true;
  }

 private:
  // The last kernel before `member` that wrote the cell; -1: none.
  int last_writer(uint64_t cell, int member) const {
    int last = -1;
    for (const BufferRange& range : ranges_) {
      const bool is_it = range.is_written && range.begin <= cell && cell < range.end;
      if (is_it && range.member < member && range.member > last) last = range.member;
    }
    return last;
  }

  bool reads_right(const BufferRange& read, uint64_t cell) const {
    // The writer whose value the solution uses: the last kernel before it that wrote this buffer.
    int known = -1;
    for (const BufferRange& range : ranges_) {
      const bool is_it = range.is_written && range.group == read.group && cell < range.end;
      if (is_it && range.member < read.member && range.member > known) known = range.member;
    }
    if (known != -1) return last_writer(cell, read.member) == known;
    // The solution reads memory, and may have written any of the other kernels' results by then,
    // except in place.
    for (const BufferRange& range : ranges_) {
      const bool is_it = range.is_written && range.begin <= cell && cell < range.end;
      const bool is_in_place = range.member > read.member && range.group == read.group &&
                               range.end == read.end && !range.is_written_first && !range.is_dead;
      if (is_it && range.member != read.member && !is_in_place) return false;
    }
    return true;
  }

  bool writes_right(uint64_t cell) const {
    const BufferRange* last = nullptr;
    for (const BufferRange& range : ranges_) {
      if (!range.is_written || cell < range.begin || range.end <= cell) continue;
      if (range.is_dead) return true;  // the cell is never read
      if (last == nullptr || range.member > last->member) last = &range;
    }
    for (const BufferRange& range : ranges_) {
      if (!range.is_written || cell < range.begin || range.end <= cell) continue;
      const bool is_one = range.group == last->group && range.end == last->end;
      const bool is_in_order = range.is_written_first && !last->is_written_first;
      if (range.member != last->member && !is_one && !is_in_order) return false;
    }
    return true;
  }

  const std::vector<BufferRange>& ranges_;
};

// Checks every choice of `count` ranges over so many cells, and of which ranges are one buffer.
uint64_t check_all_buffers(size_t count, uint64_t cells) {
  std::vector<BufferRange> all;
  for (uint64_t begin = 0; begin < cells; ++begin) {
    for (uint64_t end = begin + 1; end <= cells; ++end) {
      for (uint8_t member = 0; member < Cells::kMembers; ++member) {
        for (int kind = 0; kind < 4; ++kind) {
          all.push_back({begin, end, member, kind != 0, kind == 2, 0, kind == 3});
        }
      }
    }
  }
  uint64_t fine = 0;
  std::vector<BufferRange> ranges;
  const std::function<void(size_t)> choose = [&](size_t first) {
    if (ranges.size() == count) {
      if (find_conflict(ranges.data(), static_cast<uint32_t>(count)) != nullptr) return;
      ++fine;
      if (!Cells(ranges).is_sound()) {
        std::string text;
        for (const BufferRange& range : ranges) {
          text += std::to_string(range.member) +
                  (range.is_dead            ? 'd'
                   : range.is_written_first ? 'f'
                   : range.is_written       ? 'w'
                                            : 'r') +
                  std::to_string(range.begin) + "-" + std::to_string(range.end) + " of " +
                  std::to_string(range.group) + "  ";
        }
        ADD_FAILURE() << text;
      }
      return;
    }
    for (size_t i = first; i < all.size(); ++i) {
      // The range is a buffer of its own, or the same as one with the same begin.
      for (uint8_t group = 0; group <= ranges.size(); ++group) {
        if (group < ranges.size() &&
            (ranges[group].begin != all[i].begin || ranges[group].group != group))
          continue;
        ranges.push_back(all[i]);
        ranges.back().group = group;
        choose(i);
        ranges.pop_back();
        if (testing::Test::HasFailure()) return;
      }
    }
  };
  choose(0);
  return fine;
}

TEST(RewriteRules, EveryChoiceOfBuffersThatIsTakenIsSound) {
  EXPECT_GT(check_all_buffers(2, Cells::kCells), 300u);
  EXPECT_GT(check_all_buffers(3, Cells::kCells), 3'000u);
  EXPECT_GT(check_all_buffers(4, 2), 5'000u);
}

}  // namespace
}  // namespace fibshim
