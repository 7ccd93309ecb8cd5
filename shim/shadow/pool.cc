#include "shim/shadow/pool.h"

namespace fibshim {
namespace {

// Where a block of so many bytes can begin in the ring, whose free room begins at `at`.
uint64_t place_of(const ShadowBlock& block, uint64_t memory, uint64_t at) {
  const uint64_t wanted = block.address % kShadowAlignment;
  const uint64_t found = (memory + at) % kShadowAlignment;
  return at + (wanted - found + kShadowAlignment) % kShadowAlignment;
}

// Places all blocks one behind the other from `at` on. False: beyond `end`.
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

}  // namespace

ShadowMiss take_room(Pool* pool, ShadowCheck* check) {
  uint64_t wanted = 0;
  for (uint32_t i = 0; i < check->block_count; ++i) {
    if (check->blocks[i].bytes > pool->bytes) return ShadowMiss::size;
    wanted += check->blocks[i].bytes + kShadowAlignment;
  }
  if (wanted > pool->bytes) return ShadowMiss::size;
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

const Slot* take_finished(Pool* pool) {
  if (pool->taken == 0) return nullptr;
  const uint32_t index = pool->first;
  Slot& slot = pool->slots[index];
  const CompareAnswer& answer = pool->answers[index];
  if (__atomic_load_n(&answer.done, __ATOMIC_ACQUIRE) != slot.number) return nullptr;
  for (uint32_t i = 0; i < slot.result.output_count; ++i) {
    slot.result.totals[i] = answer.totals[i];
  }
  pool->tail = slot.end;
  pool->first = (index + 1) % kMaxSlots;
  --pool->taken;
  return &slot;
}

}  // namespace fibshim
