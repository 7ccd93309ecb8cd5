// A mutex for the slow paths, and its guard. Wraps pthread's; no exceptions, no allocation.
//
// Rule: never hold one while calling into the driver or the dynamic linker. Both have locks of their
// own, and the host may hold those while it waits for the shim. Exceptions say why they are safe
// (Exec::lock in graphs/exec_table.h).
#pragma once

#include <pthread.h>

namespace fibshim {

class Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }
  // Called in parent and child by the thread that held the mutex across a fork, its owner in both.
  void unlock_after_fork(bool) { unlock(); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class MutexGuard {
 public:
  explicit MutexGuard(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexGuard() { mutex_.unlock(); }
  MutexGuard(const MutexGuard&) = delete;
  MutexGuard& operator=(const MutexGuard&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace fibshim
