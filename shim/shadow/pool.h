// GPU memory for the checks of one context, made once: a ring that checks take room in, in the order in which they
// begin, and give it back in. What they find comes through memory of the host's that the driver knows: it stays
// readable when the context ends.
//
// Only memory and places here; the driver is called by shadow.cc. Holding its lock.
#pragma once

#include "shim/abi/shadow_api.h"
#include "shim/driver/cuda_names.h"
#include "shim/shadow/compare.h"

namespace fibshim {

inline constexpr uint32_t kMaxSlots = 256;  // checks under way in one context

// One check, from begin() until it is reclaimed.
struct Slot {
  uint64_t end;  // of its room in the ring
  uint32_t number;
  bool is_abandoned;  // nothing is to be read
  ShadowResult result;
};

struct Pool {
  // Ready is set last, and again cleared when the context ends or a check could not be ended.
  bool is_ready;
  CUcontext context;  // null: a free place
  int32_t device;
  CUdeviceptr memory;
  uint64_t bytes;
  CUdeviceptr totals;       // ShadowTotals of each slot's outputs
  CUdeviceptr blocks_done;  // a word of each slot
  CompareAnswer* answers;   // of each slot
  CUdeviceptr device_answers;
  CUkernel kernel;

  uint64_t head, tail;    // of the ring: the room between tail and head is taken
  uint32_t first, taken;  // slots
  uint32_t next_number;
  Slot slots[kMaxSlots];
};

// Room for the blocks: fills in their copies, and the slot. Not `none`: there is none, now or ever.
ShadowMiss take_room(Pool* pool, ShadowCheck* check);

// The next check whose answer is there, and gives its room back. Null: none.
const Slot* take_finished(Pool* pool);
inline ShadowTotals* totals_of_slot(const Pool& pool, uint32_t slot) {
  return reinterpret_cast<ShadowTotals*>(pool.totals) + uint64_t{slot} * kMaxShadowOutputs;
}

}  // namespace fibshim
