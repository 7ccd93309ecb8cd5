// GPU memory for the checks of one context, made once: a ring that checks take room in, in the order in which they
// begin, and give it back in; and a part for checks in graphs, which hold theirs until their one launch has been answered, or the graph
// ended without one. What they find comes through memory of the host's that the driver knows: it stays
// readable when the context ends.
//
// Only memory and places here; the driver is called by shadow.cc. Holding its lock.
#pragma once

#include "shim/abi/shadow_api.h"
#include "shim/driver/cuda_names.h"
#include "shim/shadow/compare.h"

namespace fibshim {

inline constexpr uint32_t kMaxSlots = 256;  // checks under way in one context
inline constexpr uint32_t kMaxGraphSlots = 128;
inline constexpr uint32_t kAllSlots = kMaxSlots + kMaxGraphSlots;
inline constexpr uint64_t kGraphShare = 4;  // of all memory one part of so many is for graphs

// One check, from begin() until it is reclaimed.
struct Slot {
  uint64_t end;  // of its room in the ring
  uint32_t number;
  bool is_abandoned;  // nothing is to be read
  ShadowResult result;
};

// One check in a graph.
struct GraphSlot {
  uint64_t begin, end;  // its room
  uint32_t number;      // 0: free
  bool is_ended;        // the graph is not launched any more
  ShadowResult result;
};

struct Pool {
  // Ready is set last, and again cleared when the context ends or a check could not be ended.
  bool is_ready;
  CUcontext context;  // null: a free place
  int32_t device;
  CUdeviceptr memory;
  uint64_t bytes;  // of the ring; graphs' are behind that
  uint64_t graph_bytes;
  CUdeviceptr totals;       // ShadowTotals of each slot's outputs
  CUdeviceptr blocks_done;  // a word of each slot
  CompareAnswer* answers;   // of each slot
  CUdeviceptr device_answers;
  CUkernel kernel;

  uint64_t head, tail;    // of the ring: the room between tail and head is taken
  uint32_t first, taken;  // slots
  uint32_t next_number;
  Slot slots[kMaxSlots];
  GraphSlot graph_slots[kMaxGraphSlots];
};

// Reserves room for the blocks' copies and a slot, and fills both in. Other than `none`: why it
// cannot.
ShadowMiss reserve_room(Pool* pool, ShadowCheck* check);

// Does the same for a check in a graph. Null: it cannot; `miss` says why.
GraphSlot* reserve_graph_room(Pool* pool, ShadowCheck* check, ShadowMiss* miss);
// Releases the slot; if the check was launched, once its answer has come.
void end_graph_slot(GraphSlot* slot, bool was_launched);

// Returns the next check whose answer has come, and releases its room. Null: there is none.
const Slot* pop_finished(Pool* pool);
// Does the same for checks in graphs.
const GraphSlot* pop_finished_in_graph(Pool* pool);
inline ShadowTotals* totals_of_slot(const Pool& pool, uint32_t slot) {
  return reinterpret_cast<ShadowTotals*>(pool.totals) + uint64_t{slot} * kMaxShadowOutputs;
}

}  // namespace fibshim
