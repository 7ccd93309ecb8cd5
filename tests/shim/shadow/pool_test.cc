// The ring from which shadow checks get memory: no two checks under way share memory, and memory
// returns in order.
#include "shim/shadow/pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>

namespace fibshim {
namespace {

constexpr uint64_t kMemory = 0x7f0000000000 + 24;  // not aligned
constexpr uint64_t kBytes = 16 * 1024;

class ShadowPool : public testing::Test {
 protected:
  ShadowPool() : pool_(new Pool()), answers_(new CompareAnswer[kAllSlots]()) {
    pool_->memory = kMemory;
    pool_->bytes = kBytes;
    pool_->answers = answers_.get();
  }

  ShadowMiss begin(const std::vector<ShadowBlock>& blocks) {
    ShadowCheck check = {};
    for (const ShadowBlock& block : blocks) check.blocks[check.block_count++] = block;
    const ShadowMiss miss = reserve_room(pool_.get(), &check);
    if (miss != ShadowMiss::none) return miss;
    under_way_.push_back(check);
    expect_apart();
    return miss;
  }
  ShadowMiss begin(uint64_t bytes) { return begin({{0x5000, bytes, 0}}); }

  // Simulates the kernel's answer to the `index`th check under way.
  void answer(size_t index) {
    const uint32_t slot = under_way_[index].slot;
    answers_[slot].done = pool_->slots[slot].number;
  }
  bool reclaim() {
    const Slot* const slot = pop_finished(pool_.get());
    if (slot == nullptr) return false;
    EXPECT_EQ(slot, &pool_->slots[under_way_.front().slot]);
    under_way_.pop_front();
    return true;
  }
  void end_all() {
    for (size_t i = 0; i < under_way_.size(); ++i) answer(i);
    while (reclaim()) {
    }
    EXPECT_TRUE(under_way_.empty());
  }

  // Each copy is in the pool, has its original's offset within 256 bytes, and overlaps no other.
  void expect_apart() const {
    std::map<uint64_t, uint64_t> ends;
    for (const ShadowCheck& check : under_way_) {
      for (uint32_t i = 0; i < check.block_count; ++i) {
        const ShadowBlock& block = check.blocks[i];
        ASSERT_GE(block.copy, kMemory);
        ASSERT_LE(block.copy + block.bytes, kMemory + kBytes);
        ASSERT_EQ(block.copy % kShadowAlignment, block.address % kShadowAlignment);
        ends[block.copy] = block.copy + block.bytes;
      }
    }
    uint64_t last = 0;
    for (const auto& [from, end] : ends) {
      ASSERT_GE(from, last);
      last = end;
    }
  }

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<CompareAnswer[]> answers_;
  std::deque<ShadowCheck> under_way_;
};

TEST_F(ShadowPool, ChecksUnderWayShareNoMemory) {
  std::minstd_rand random(7);
  long begun = 0;
  long busy = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      std::vector<ShadowBlock> blocks(1 + random() % 3);
      for (ShadowBlock& block : blocks) block = {random(), 1 + random() % 3000, 0};
      const ShadowMiss miss = begin(blocks);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_TRUE(miss == ShadowMiss::none || miss == ShadowMiss::busy);
      (miss == ShadowMiss::none ? begun : busy) += 1;
    } else if (!under_way_.empty()) {
      answer(random() % under_way_.size());
      while (reclaim()) {
      }
    }
  }
  end_all();
  EXPECT_GT(begun, 1000);
  EXPECT_GT(busy, 100);
}

TEST_F(ShadowPool, RoomComesBackInTheOrderInWhichItWasTaken) {
  ASSERT_EQ(begin(6000), ShadowMiss::none);
  ASSERT_EQ(begin(6000), ShadowMiss::none);
  EXPECT_EQ(begin(6000), ShadowMiss::busy);
  answer(1);
  EXPECT_FALSE(reclaim());
  EXPECT_EQ(begin(6000), ShadowMiss::busy);
  answer(0);
  EXPECT_TRUE(reclaim());
  EXPECT_TRUE(reclaim());
  EXPECT_FALSE(reclaim());
  EXPECT_EQ(begin(6000), ShadowMiss::none);
}

TEST_F(ShadowPool, WhatCanNeverFitIsTooLarge) {
  EXPECT_EQ(begin(kBytes + 1), ShadowMiss::size);
  EXPECT_EQ(begin(kBytes - kShadowAlignment + 1), ShadowMiss::size);
  EXPECT_EQ(begin({{0, kBytes / 2, 0}, {kBytes, kBytes / 2, 0}}), ShadowMiss::size);
  EXPECT_EQ(begin(kBytes - kShadowAlignment), ShadowMiss::none);
  EXPECT_EQ(begin(kShadowAlignment), ShadowMiss::busy);
  end_all();
  EXPECT_EQ(begin(kBytes - kShadowAlignment), ShadowMiss::none);
}

// An answer that is left from an earlier check does not answer the slot's next check.
TEST_F(ShadowPool, EachCheckHasItsOwnAnswer) {
  for (uint32_t i = 0; i < kMaxSlots; ++i) ASSERT_EQ(begin({{i, 1, 0}}), ShadowMiss::none);
  EXPECT_EQ(begin(1), ShadowMiss::busy);  // for lack of slots
  end_all();
  for (uint32_t i = 0; i < kMaxSlots; ++i) {
    ASSERT_EQ(begin({{i, 1, 0}}), ShadowMiss::none);
    EXPECT_FALSE(reclaim());
  }
}

// A graph that was launched may exist for long without being launched again.
TEST_F(ShadowPool, RoomOfAGraphComesBackWithItsAnswer) {
  pool_->graph_bytes = kBytes;
  ShadowMiss miss = ShadowMiss::none;
  const auto take = [&] {
    ShadowCheck check = {};
    check.blocks[check.block_count++] = {0x5000, kBytes / 2, 0};
    return reserve_graph_room(pool_.get(), &check, &miss);
  };
  GraphSlot* const launched = take();
  ASSERT_NE(launched, nullptr);
  EXPECT_EQ(take(), nullptr);
  EXPECT_EQ(miss, ShadowMiss::busy);
  answers_[kMaxSlots + static_cast<size_t>(launched - pool_->graph_slots)].done = launched->number;
  EXPECT_EQ(pop_finished_in_graph(pool_.get()), launched);
  EXPECT_EQ(pop_finished_in_graph(pool_.get()), nullptr);
  GraphSlot* const never_launched = take();
  ASSERT_NE(never_launched, nullptr);
  end_graph_slot(never_launched, false);
  EXPECT_NE(take(), nullptr);
}

}  // namespace
}  // namespace fibshim
