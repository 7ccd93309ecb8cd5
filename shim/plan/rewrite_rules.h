// Whether several kernels of a graph may become one launch.
//
// Pure: nodes are numbers and buffers are address ranges. No driver, no globals, no allocation; the
// caller provides scratch memory.
#pragma once

#include <stdint.h>

namespace fibshim {

// A directed acyclic graph, some of whose nodes have been merged.
struct Dag {
  uint32_t count;  // of nodes
  const uint32_t*
      first;  // [count + 1]; node i has the successors next[first[i]] to next[first[i + 1] - 1]
  const uint32_t* next;
  uint32_t* position;  // [count]; a topological order: every edge leads to a higher position
  uint32_t* sibling;   // [count]; a ring through the nodes that are merged with it
  uint32_t*
      reach;  // [count], by position: the highest one of nodes that are merged with a node up to here; itself: none is
};

// Fills `position`, `sibling` and `reach`. `room`: 2 * count elements. False: the edges form a cycle.
bool order_nodes(Dag* dag, uint32_t* room);

// True if these nodes can be merged into one that keeps all their predecessors and successors:
// every path from one of them to another runs only through them. None may be merged already.
// `seen`: count zeros, zeroed again on return; `room`: count elements.
bool may_become_one(const Dag& dag, const uint32_t* nodes, uint32_t node_count, uint8_t* seen,
                    uint32_t* room);
void become_one(Dag* dag, const uint32_t* nodes, uint32_t node_count);

// A range that a kernel of a rewrite reads or writes. The kernels run in the order of `member`.
struct BufferRange {
  uint64_t begin;
  uint64_t end;
  uint8_t member;
  bool is_written;
  bool is_dead;
  uint8_t group;                  // equal: the same buffer, as the pattern states
  bool is_written_first = false;  // the merged launch writes it before those that are not

  bool operator==(const BufferRange&) const = default;
};

// Returns why one launch cannot read and write all ranges in whatever order, or null if it can. A
// range that a kernel writes may overlap one that a later kernel reads or writes if the pattern
// states that both are one buffer. So may one that an earlier kernel reads, if both end together,
// too, and the written one is neither dead nor written first: the solution works in place. A written
// range may also overlap one that a later kernel writes if it is dead, or if only it is written
// first. No other overlap of a written range with another kernel's range is allowed.
const char* find_conflict(const BufferRange* ranges, uint32_t count);

}  // namespace fibshim
