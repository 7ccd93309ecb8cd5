// Makes the items of a list ahead on a few threads, while one caller fetches them in the list's
// order: reading a folder is mostly waiting for the system, once for each of thousands of files.
//
// The threads exist only while an Ahead lives: at most three, and none for a short list or a
// process with one processor. They block all signals, so they never run a handler of the host.
#pragma once

#include <sched.h>
#include <signal.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fibshim {

template <class T>
class Ahead {
 public:
  // Calls `make` once for each place, from any thread. Starts one thread per `per_thread` places.
  Ahead(size_t count, size_t per_thread, std::function<std::unique_ptr<T>(size_t)> make)
      : make_(std::move(make)), made_(count), is_made_(count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (size_t i = std::min({count / per_thread, processors() - 1, kMostThreads}); i > 0; --i) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::exception&) {  // the threads that did start must do
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Ahead() {
    {
      const std::lock_guard lock(mutex_);
      next_ = made_.size();
    }
    has_room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  // Returns what `make` returned for `place`, or null if it threw. Places must be fetched in
  // increasing order, each at most once.
  std::unique_ptr<T> fetch(size_t place) {
    std::unique_lock lock(mutex_);
    first_ = place;
    if (next_ < place + kMostAhead / 2) has_room_.notify_all();
    while (!is_made_[place]) {
      if (can_go_on()) {
        make_next(&lock);
      } else {
        is_ready_.wait(lock);
      }
    }
    return std::move(made_[place]);
  }

 private:
  static constexpr size_t kMostThreads = 3;
  static constexpr size_t kMostAhead = 24;

  static size_t processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<size_t>(CPU_COUNT(&set)) : 1;
  }

  bool can_go_on() const { return next_ < made_.size() && next_ < first_ + kMostAhead; }

  void make_next(std::unique_lock<std::mutex>* lock) {
    const size_t place = next_++;
    lock->unlock();
    std::unique_ptr<T> made;
    try {
      made = make_(place);
    } catch (...) {  // out of memory; fetch() returns null
    }
    lock->lock();
    made_[place] = std::move(made);
    is_made_[place] = true;
    if (place == first_) is_ready_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (next_ < made_.size()) {
      if (can_go_on()) {
        make_next(&lock);
      } else {
        has_room_.wait(lock);
      }
    }
  }

  const std::function<std::unique_ptr<T>(size_t)> make_;
  std::mutex mutex_;
  std::condition_variable has_room_, is_ready_;
  std::vector<std::unique_ptr<T>> made_;
  std::vector<bool> is_made_;
  size_t next_ = 0;   // the next place to make
  size_t first_ = 0;  // the place fetched last; earlier ones are not fetched any more
  std::vector<std::thread> threads_;
};

}  // namespace fibshim
