#include "shim/shadow/pool.h"

#include <string.h>

namespace fibshim {
namespace {

// Returns where a copy of the block can begin in free room from `at` on.
uint64_t place_of(const ShadowBlock& block, uint64_t memory, uint64_t at) {
  const uint64_t wanted = block.address % kShadowAlignment;
  const uint64_t found = (memory + at) % kShadowAlignment;
  return at + (wanted - found + kShadowAlignment) % kShadowAlignment;
}

// Places all blocks one after another from `at` on. False: they exceed `end`.
bool place_blocks(ShadowCheck* check, uint64_t memory, uint64_t at, uint64_t end,
                  uint64_t* new_head) {
  for (uint32_t i = 0; i < check->block_count; ++i) {
    ShadowBlock& block = check->blocks[i];
    at = place_of(block, memory, at);
    if (at > end || block.bytes > end - at) return false;
    block.copy = memory + at;
    at += block.bytes;
  }
  *new_head = at;
  return true;
}

bool is_free(const Pool& pool, uint64_t at) {
  for (const GraphSlot& slot : pool.graph_slots) {
    if (slot.number != 0 && slot.begin <= at && at < slot.end) return false;
  }
  return true;
}

// Places the blocks in the free room from `at` on. False: it is too small.
bool place_in_graphs(const Pool& pool, ShadowCheck* check, uint64_t at, uint64_t* new_head) {
  uint64_t end = pool.bytes + pool.graph_bytes;
  for (const GraphSlot& slot : pool.graph_slots) {
    if (slot.number != 0 && slot.begin >= at && slot.begin < end) end = slot.begin;
  }
  return is_free(pool, at) && place_blocks(check, pool.memory, at, end, new_head);
}

bool fits_at_all(const ShadowCheck& check, uint64_t bytes) {
  uint64_t wanted = 0;
  for (uint32_t i = 0; i < check.block_count; ++i) {
    if (check.blocks[i].bytes > bytes) return false;
    wanted += check.blocks[i].bytes + kShadowAlignment;
  }
  return wanted <= bytes;
}

void copy_answer(const CompareAnswer& answer, ShadowResult* result) {
  for (uint32_t i = 0; i < result->output_count; ++i) result->totals[i] = answer.totals[i];
}

bool is_there(const CompareAnswer& answer, uint32_t number) {
  return __atomic_load_n(&answer.done, __ATOMIC_ACQUIRE) == number;
}

}  // namespace

ShadowMiss reserve_room(Pool* pool, ShadowCheck* check) {
  if (!fits_at_all(*check, pool->bytes)) return ShadowMiss::size;
  if (pool->taken == kMaxSlots) return ShadowMiss::busy;
  if (pool->taken == 0) pool->head = pool->tail = 0;
  uint64_t head = 0;
  const bool is_wrapped = pool->taken != 0 && pool->head <= pool->tail;
  const bool fits = is_wrapped
                        ? place_blocks(check, pool->memory, pool->head, pool->tail, &head)
                        : place_blocks(check, pool->memory, pool->head, pool->bytes, &head) ||
                              place_blocks(check, pool->memory, 0, pool->tail, &head);
  if (!fits) return ShadowMiss::busy;
  const uint32_t index = (pool->first + pool->taken) % kMaxSlots;
  Slot& slot = pool->slots[index];
  pool->head = slot.end = head;
  ++pool->taken;
  if (++pool->next_number == 0) ++pool->next_number;
  slot.number = pool->next_number;
  slot.is_abandoned = false;
  check->pool = pool;
  check->slot = index;
  return ShadowMiss::none;
}

GraphSlot* reserve_graph_room(Pool* pool, ShadowCheck* check, ShadowMiss* miss) {
  static uint32_t last_number;
  *miss = ShadowMiss::size;
  if (!fits_at_all(*check, pool->graph_bytes)) return nullptr;
  *miss = ShadowMiss::busy;
  GraphSlot* slot = nullptr;
  for (GraphSlot& one : pool->graph_slots) {
    if (one.number == 0) slot = &one;
  }
  if (slot == nullptr) return nullptr;
  uint64_t begin = pool->bytes;
  uint64_t end = 0;
  bool is_placed = place_in_graphs(*pool, check, begin, &end);
  for (const GraphSlot& one : pool->graph_slots) {
    if (is_placed) break;
    if (one.number == 0) continue;
    begin = one.end;
    is_placed = place_in_graphs(*pool, check, begin, &end);
  }
  if (!is_placed) return nullptr;
  memset(static_cast<void*>(slot), 0, sizeof *slot);
  slot->begin = begin;
  slot->end = end;
  if (++last_number == 0) ++last_number;
  slot->number = last_number;
  check->pool = pool;
  check->slot = kMaxSlots + static_cast<uint32_t>(slot - pool->graph_slots);
  *miss = ShadowMiss::none;
  return slot;
}

void end_graph_slot(GraphSlot* slot, bool was_launched) {
  slot->is_ended = true;
  if (!was_launched) slot->number = 0;
}

const GraphSlot* pop_finished_in_graph(Pool* pool) {
  for (uint32_t i = 0; i < kMaxGraphSlots; ++i) {
    GraphSlot& slot = pool->graph_slots[i];
    const CompareAnswer& answer = pool->answers[kMaxSlots + i];
    if (slot.number == 0 || !is_there(answer, slot.number)) continue;
    copy_answer(answer, &slot.result);
    slot.number = 0;
    return &slot;
  }
  return nullptr;
}

const Slot* pop_finished(Pool* pool) {
  if (pool->taken == 0) return nullptr;
  const uint32_t index = pool->first;
  Slot& slot = pool->slots[index];
  const CompareAnswer& answer = pool->answers[index];
  if (!is_there(answer, slot.number)) return nullptr;
  copy_answer(answer, &slot.result);
  pool->tail = slot.end;
  pool->first = (index + 1) % kMaxSlots;
  --pool->taken;
  return &slot;
}

}  // namespace fibshim
