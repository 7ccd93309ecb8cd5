// Grace periods: for which threads they wait. A child need not wait for threads of its parent.
#include "shim/base/read_section.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <semaphore>
#include <thread>

namespace fibshim {
namespace {

// Another thread, which stays in a section until it is released.
class Reader {
 public:
  explicit Reader(bool is_fast) {
    thread_ = std::thread([this, is_fast] {
      {
        ReadSection section;
        if (is_fast) enter_fast_section(t_reader);
        is_within_.release();
        may_leave_.acquire();
        if (is_fast) leave_fast_section(t_reader);
      }
      has_left_.release();
      may_end_.acquire();
    });
    is_within_.acquire();
  }
  ~Reader() {
    leave();
    may_end_.release();
    thread_.join();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void leave() {
    if (has_left_once_) return;
    has_left_once_ = true;
    may_leave_.release();
    has_left_.acquire();
  }

 private:
  std::thread thread_;
  std::binary_semaphore is_within_{0}, may_leave_{0}, has_left_{0}, may_end_{0};
  bool has_left_once_ = false;
};

// Forks as the shim's handlers do.
pid_t fork_process() {
  lock_readers_for_fork();
  const pid_t child = fork();
  unlock_readers_after_fork(child == 0);
  return child;
}

bool ends_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The result of `holds` in a child process.
template <class Holds>
bool holds_in_child(const Holds& holds) {
  const pid_t child = fork_process();
  if (child == 0) _exit(holds() ? 0 : 1);
  return ends_well(child);
}

bool ends_at_once() {
  GracePeriod period;
  period.begin();
  return period.has_ended();
}

// Threads have their own states only while the program leaves a free key for thread-specific data.
void take_all_keys() {
  pthread_key_t key;
  while (pthread_key_create(&key, nullptr) == 0) {
  }
}

TEST(ReadSection, AGracePeriodWaitsForThoseThatWereThere) {
  for (const bool is_fast : {false, true}) {
    Reader reader(is_fast);
    GracePeriod period;
    period.begin();
    EXPECT_FALSE(period.has_ended());
    Reader later(is_fast);
    EXPECT_FALSE(period.has_ended());
    reader.leave();
    EXPECT_TRUE(period.has_ended());
    EXPECT_FALSE(ends_at_once());
  }
  EXPECT_TRUE(ends_at_once());
}

// Runs `holds` in a new process, in which no thread has had a section yet.
template <class Holds>
void expect_without_keys(const Holds& holds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        take_all_keys();
        _exit(holds() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(ReadSection, OneWithoutAStateIsWaitedForToo) {
  expect_without_keys([] {
    Reader reader(false);
    GracePeriod period;
    period.begin();
    const bool has_waited = !period.has_ended();
    reader.leave();
    return has_waited && period.has_ended();
  });
}

TEST(ReadSection, AChildDoesNotWaitForOneWithoutAState) {
  expect_without_keys([] {
    const Reader reader(false);
    return !ends_at_once() && holds_in_child(ends_at_once);
  });
}

TEST(ReadSection, AChildDoesNotWaitForItsParentsReaders) {
  for (const bool is_fast : {false, true}) {
    Reader reader(is_fast);
    GracePeriod period;
    period.begin();
    EXPECT_TRUE(holds_in_child([&] {
      period.end_in_child();
      return period.has_ended() && ends_at_once();
    }));
    EXPECT_FALSE(period.has_ended());
  }
}

TEST(ReadSection, AChildForkedWithinOneHasNothingToLeave) {
  pid_t child = -1;
  {
    const ReadSection section;
    child = fork_process();
  }
  if (child == 0) _exit(ends_at_once() ? 0 : 1);
  EXPECT_TRUE(ends_well(child));
}

}  // namespace
}  // namespace fibshim
