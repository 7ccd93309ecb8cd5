#include "shim/plan/rewrite_rules.h"

namespace fibshim {
namespace {

constexpr uint8_t kOutside = 1;  // a successor of the nodes
constexpr uint8_t kInside = 2;   // one of the nodes

// Returns the position beyond which no path leads back to any of the nodes, by an edge or by a ring
// of merged nodes.
uint32_t find_limit(const Dag& dag, const uint32_t* nodes, uint32_t node_count) {
  uint32_t limit = 0;
  for (uint32_t i = 0; i < node_count; ++i) {
    if (dag.position[nodes[i]] > limit) limit = dag.position[nodes[i]];
  }
  while (dag.reach[limit] > limit) limit = dag.reach[limit];
  return limit;
}

bool overlap(const BufferRange& one, const BufferRange& other) {
  return one.begin < other.end && other.begin < one.end;
}

// `written` and `other` belong to different kernels, in either order.
const char* find_conflict_of(const BufferRange& written, const BufferRange& other) {
  const bool is_earlier = written.member < other.member;
  const bool is_one = written.group == other.group && written.begin == other.begin;
  if (!other.is_written) {
    const bool is_flow = is_earlier && is_one && other.end <= written.end;
    // The solution knows that it works in place. What is dead it may leave as it was, and another
    // rewrite that has the buffer as its own dead one relies on reading what its own kernels wrote.
    const bool is_in_place = !is_earlier && is_one && other.end == written.end &&
                             !written.is_written_first && !written.is_dead;
    return is_flow || is_in_place
               ? nullptr
               : "a buffer that one of them writes overlaps one that another reads";
  }
  // The later kernel's data must remain: the earlier buffer is not needed, or is written first.
  const bool is_same = is_one && written.end == other.end;
  const BufferRange& earlier = is_earlier ? written : other;
  const BufferRange& later = is_earlier ? other : written;
  const bool is_in_order = earlier.is_written_first && !later.is_written_first;
  return is_same || earlier.is_dead || is_in_order ? nullptr
                                                   : "buffers that two of them write overlap";
}

}  // namespace

bool order_nodes(Dag* dag, uint32_t* room) {
  uint32_t* const waits = room;  // number of predecessors that are not ordered yet
  uint32_t* const queue = room + dag->count;
  uint32_t ready = 0;
  for (uint32_t i = 0; i < dag->count; ++i) waits[i] = 0;
  for (uint32_t i = 0; i < dag->first[dag->count]; ++i) ++waits[dag->next[i]];
  for (uint32_t i = 0; i < dag->count; ++i) {
    dag->sibling[i] = dag->reach[i] = i;
    if (waits[i] == 0) queue[ready++] = i;
  }
  for (uint32_t at = 0; at < ready; ++at) {
    const uint32_t node = queue[at];
    dag->position[node] = at;
    for (uint32_t i = dag->first[node]; i < dag->first[node + 1]; ++i) {
      if (--waits[dag->next[i]] == 0) queue[ready++] = dag->next[i];
    }
  }
  return ready == dag->count;
}

bool may_become_one(const Dag& dag, const uint32_t* nodes, uint32_t node_count, uint8_t* seen,
                    uint32_t* room) {
  const uint32_t limit = find_limit(dag, nodes, node_count);
  uint32_t count = 0;
  bool comes_back = false;
  for (uint32_t i = 0; i < node_count; ++i) seen[nodes[i]] = kInside;
  const auto follow = [&](uint32_t node, bool is_inside) {
    for (uint32_t i = dag.first[node]; i < dag.first[node + 1]; ++i) {
      const uint32_t next = dag.next[i];
      comes_back = comes_back || (seen[next] == kInside && !is_inside);
      if (seen[next] != 0 || dag.position[next] > limit) continue;
      uint32_t one = next;
      do {
        seen[one] = kOutside;
        room[count++] = one;
        one = dag.sibling[one];
      } while (one != next);
    }
  };
  for (uint32_t i = 0; i < node_count; ++i) follow(nodes[i], true);
  for (uint32_t i = 0; i < count && !comes_back; ++i) follow(room[i], false);
  for (uint32_t i = 0; i < count; ++i) seen[room[i]] = 0;
  for (uint32_t i = 0; i < node_count; ++i) seen[nodes[i]] = 0;
  return !comes_back;
}

void become_one(Dag* dag, const uint32_t* nodes, uint32_t node_count) {
  uint32_t lowest = UINT32_MAX;
  uint32_t highest = 0;
  for (uint32_t i = 0; i < node_count; ++i) {
    dag->sibling[nodes[i]] = nodes[i + 1 == node_count ? 0 : i + 1];
    const uint32_t position = dag->position[nodes[i]];
    if (position < lowest) lowest = position;
    if (position > highest) highest = position;
  }
  for (uint32_t at = lowest; at < highest; ++at) {
    if (dag->reach[at] < highest) dag->reach[at] = highest;
  }
}

const char* find_conflict(const BufferRange* ranges, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const BufferRange& written = ranges[i];
    if (!written.is_written) continue;
    for (uint32_t k = 0; k < count; ++k) {
      const BufferRange& other = ranges[k];
      if (k == i || !overlap(written, other)) continue;
      if (other.member != written.member) {
        if (const char* const conflict = find_conflict_of(written, other)) return conflict;
      } else if (written.is_dead) {
        return "a buffer that is dead overlaps another of the same kernel";
      }
    }
  }
  return nullptr;
}

}  // namespace fibshim
