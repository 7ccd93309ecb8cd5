// The allocator of libfibloader.so, which this program has, too.
#include <gtest/gtest.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

namespace fibshim {
namespace {

size_t resident_bytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Of each size, several times as many as go into one batch.
TEST(Memory, GivesEachBlockItsBytes) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < 600; ++i) {
      for (const size_t size : {0, 1, 8, 9, 24, 25, 40, 41, 100, 1000, 1016, 1017, 5000}) {
        blocks.emplace_back(static_cast<char*>(::operator new(size)), size);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(blocks.back().first) % 16, 0u);
        memset(blocks.back().first, static_cast<int>(blocks.size() % 251), size);
      }
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto& [at, size] = blocks[i];
      const std::string expected(size, static_cast<char>((i + 1) % 251));
      ASSERT_EQ(memcmp(at, expected.data(), size), 0) << size;
    }
    for (const auto& block : blocks) ::operator delete(block.first);
    blocks.clear();
  }
}

TEST(Memory, IsUsedAgainWhereverItIsFreed) {
  constexpr size_t kBlocks = 20000, kBytes = 200;
  size_t before = 0;
  for (int turn = 0; turn < 60; ++turn) {
    std::vector<std::vector<char*>> made(3);
    std::vector<std::thread> threads;
    for (auto& own : made) {
      threads.emplace_back([&own] {
        for (size_t i = 0; i < kBlocks; ++i) own.push_back(new char[kBytes]);
        for (size_t i = 0; i < kBlocks / 2; ++i) {
          delete[] own.back();
          own.pop_back();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& own : made) {
      for (char* const block : own) delete[] block;
    }
    if (turn == 5) before = resident_bytes();
  }
  EXPECT_LT(resident_bytes(), before + 4 * kBlocks * kBytes);
}

TEST(Memory, IsThereInAChildThatWasForkedMeanwhile) {
  std::atomic<bool> has_ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      std::vector<std::string> texts;
      while (!has_ended) {
        for (int j = 0; j < 2000; ++j) texts.emplace_back(100, 'a');
        texts.clear();
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::thread([] { std::vector<std::string>(5000, std::string(100, 'a')); }).join();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << i;
  }
  has_ended = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Memory, SaysThatThereIsNone) {
  volatile size_t size = SIZE_MAX - 8;
  EXPECT_THROW(::operator delete(::operator new(size)), std::bad_alloc);
  EXPECT_EQ(::operator new(size, std::nothrow), nullptr);
  size = SIZE_MAX / 4;
  EXPECT_THROW(::operator delete(::operator new(size)), std::bad_alloc);
}

}  // namespace
}  // namespace fibshim
