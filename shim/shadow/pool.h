// GPU memory for the checks of one context, allocated once. One part is a ring, in which eager
// checks reserve and release room in the order in which they begin. Another part is for checks in
// graphs, which hold their room until the result of their one launch has come, or the graph has
// ended without a launch. Results are written to host memory that is registered with the driver,
// and stays readable when the context ends.
//
// This module only manages memory; shadow.cc calls the driver. All functions require its lock.
#pragma once

#include "shim/abi/shadow_api.h"
#include "shim/driver/cuda_names.h"
#include "shim/shadow/compare.h"

namespace fibshim {

inline constexpr uint32_t kMaxSlots = 256;  // eager checks in progress in one context
inline constexpr uint32_t kMaxGraphSlots = 128;
inline constexpr uint32_t kAllSlots = kMaxSlots + kMaxGraphSlots;
inline constexpr uint64_t kGraphShare = 4;  // 1/kGraphShare of the memory is for checks in graphs

// One eager check, from begin() until its result is read.
struct Slot {
  uint64_t end;  // of its room in the ring
  uint32_t number;
  bool is_abandoned;  // there is no result to report
  ShadowResult result;
};

// One check in a graph.
struct GraphSlot {
  uint64_t begin, end;  // its room
  uint32_t number;      // 0: free
  bool is_ended;        // the graph will not be launched again
  ShadowResult result;
};

struct Pool {
  // Set last. Cleared when the context ends, or a comparison could not be launched.
  bool is_ready;
  CUcontext context;  // null: an unused pool
  CUdeviceptr memory;
  uint64_t bytes;  // of the ring; the part for graphs follows it
  uint64_t graph_bytes;
  CUdeviceptr totals;       // ShadowTotals of each slot's outputs
  CUdeviceptr blocks_done;  // one word per slot
  CompareAnswer* answers;   // one per slot; stay until the pool is used for another context
  CUdeviceptr device_answers;
  CUkernel kernel;

  uint64_t head, tail;    // of the ring: the room from tail to head is in use
  uint32_t first, taken;  // slots
  uint32_t next_number;
  Slot slots[kMaxSlots];
  GraphSlot graph_slots[kMaxGraphSlots];
};

// Reserves a slot and room for the blocks' copies. Returns `none`, or why it failed.
ShadowMiss reserve_room(Pool* pool, ShadowCheck* check);

// Does the same for a check in a graph. Returns null if it fails; `miss` says why.
GraphSlot* reserve_graph_room(Pool* pool, ShadowCheck* check, ShadowMiss* miss);
// Releases the slot at once, or, if the check was launched, once its answer has come.
void end_graph_slot(GraphSlot* slot, bool was_launched);

// Returns the oldest check and releases its room, if its answer has come; else null.
const Slot* pop_finished(Pool* pool);
// Does the same for any check in a graph.
const GraphSlot* pop_finished_in_graph(Pool* pool);
inline ShadowTotals* totals_of_slot(const Pool& pool, uint32_t slot) {
  return reinterpret_cast<ShadowTotals*>(pool.totals) + uint64_t{slot} * kMaxShadowOutputs;
}

}  // namespace fibshim
