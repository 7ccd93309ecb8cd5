// Whether several kernels of a graph may become one launch.
//
// Pure: sees the graph as numbers and buffers as addresses. No driver, no globals, no allocation; what it needs room
// for, the caller gives.
#pragma once

#include <stdint.h>

namespace fibshim {

// A graph without circles, some of whose nodes have become one.
struct Dag {
  uint32_t count;  // of nodes
  const uint32_t*
      first;  // [count + 1]; the nodes after node i are next[first[i]] up to next[first[i + 1]]
  const uint32_t* next;
  uint32_t* position;  // [count]; every edge leads to a higher one
  uint32_t* sibling;   // [count]; the next of those that have become one with it, in a ring
};

// Fills `position` and `sibling`. `room`: 2 * count. False: the edges run in a circle.
bool order_nodes(Dag* dag, uint32_t* room);

// Whether these can become one node, which then comes after all that any of them came after, and before all that came
// after any of them: every path from one to another runs among them. They are of no group yet. `seen`: count zeros,
// which it leaves; `room`: count.
bool may_become_one(const Dag& dag, const uint32_t* nodes, uint32_t node_count, uint8_t* seen,
                    uint32_t* room);
void become_one(Dag* dag, const uint32_t* nodes, uint32_t node_count);

// What a kernel of a rewrite reads or writes. The kernels run in the order of `member`.
struct BufferRange {
  uint64_t begin;
  uint64_t end;
  uint8_t member;
  bool is_written;
  bool is_dead;
  uint8_t group;                  // equal: the same buffer, by the pattern's word
  bool is_written_first = false;  // the one launch writes it before all that is not
};

// Why one launch cannot read and write them all, in whatever order; null: it can. A buffer that one kernel writes may
// be another's, later in the order, to read or to write, where the pattern says that they are one, and to write where it
// is written first; otherwise nothing that is written overlaps what another kernel has.
const char* find_conflict(const BufferRange* ranges, uint32_t count);

}  // namespace fibshim
