// Ahead makes every item, in order, not too far ahead, and on few threads.
#include "loader/read/ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>

namespace fibshim {
namespace {

using Numbers = Ahead<size_t>;

TEST(Ahead, GivesEachThingInItsPlaceMadeOnce) {
  std::atomic<size_t> made{0};
  Numbers numbers(5000, 1, [&](size_t i) {
    ++made;
    return std::make_unique<size_t>(i);
  });
  for (size_t i = 0; i < 5000; ++i) ASSERT_EQ(*numbers.fetch(i), i);
  EXPECT_EQ(made, 5000u);
}

TEST(Ahead, GivesNothingWhereMakingFails) {
  Numbers numbers(600, 1, [](size_t i) {
    if (i % 3 == 0) throw std::runtime_error("no memory");
    return i % 3 == 1 ? nullptr : std::make_unique<size_t>(i);
  });
  for (size_t i = 0; i < 600; ++i) EXPECT_EQ(numbers.fetch(i) != nullptr, i % 3 == 2) << i;
}

TEST(Ahead, IsNeverFarAhead) {
  std::atomic<size_t> taken{0};
  std::atomic<size_t> furthest{0};
  Numbers numbers(3000, 1, [&](size_t i) {
    const size_t distance = i - std::min(i, taken.load());
    for (size_t seen = furthest;
         seen < distance && !furthest.compare_exchange_weak(seen, distance);) {
    }
    return std::make_unique<size_t>(i);
  });
  for (size_t i = 0; i < 3000; ++i) {
    taken = i;
    (void)numbers.fetch(i);
  }
  EXPECT_LT(furthest, 64u);
}

TEST(Ahead, PlacesMayBeLeftOut) {
  Numbers numbers(1000, 1, [](size_t i) { return std::make_unique<size_t>(i); });
  for (const size_t i : {0, 7, 500, 999}) EXPECT_EQ(*numbers.fetch(i), i);
}

TEST(Ahead, MayEndUntaken) {
  Numbers(1000, 1, [](size_t i) { return std::make_unique<size_t>(i); });
}

// Returns the threads that made 1000 items, and whether any thread but this one could get a signal.
std::set<pthread_t> makers(size_t per_thread, bool* gets_signals) {
  const pthread_t self = pthread_self();
  std::mutex mutex;
  std::set<pthread_t> seen;
  Numbers numbers(1000, per_thread, [&](size_t i) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    const std::lock_guard lock(mutex);
    seen.insert(pthread_self());
    if (pthread_equal(pthread_self(), self) == 0)
      *gets_signals |= sigismember(&blocked, SIGUSR1) == 0;
    return std::make_unique<size_t>(i);
  });
  for (size_t i = 0; i < 1000; ++i) (void)numbers.fetch(i);
  return seen;
}

TEST(Ahead, HasFewThreadsAndTheHostsSignalsAreNotForThem) {
  bool gets_signals = false;
  EXPECT_LE(makers(1, &gets_signals).size(), 4u);
  EXPECT_FALSE(gets_signals);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGUSR1), 0);
}

TEST(Ahead, HasNoThreadForAShortList) {
  bool gets_signals = false;
  EXPECT_EQ(makers(1001, &gets_signals), std::set<pthread_t>{pthread_self()});
}

}  // namespace
}  // namespace fibshim
