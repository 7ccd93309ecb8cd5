// What a launch costs where the first caches hold nothing of it, as behind a real driver, which fills them at each call: before
// each launch as much other code and data is run and written, and as many other pages, as these caches and translations hold.
// The ways come by turns, in a random order; the time is the mean without the slowest twentieth.
//
// Of x86-64 alone, since it writes instructions.
//
//   launch_cold LABEL ROUNDS        on the simulated driver, with the shim preloaded and build/bench/config
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

constexpr size_t kBytes = 96 << 10, kPages = 256, kLine = 64, kPage = 4096;
constexpr int kWarmUpRounds = 50;

char* room(size_t bytes, int protection) {
  void* const at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return static_cast<char*>(at);
}

// A jump from each line to the next, and a return.
void (*make_code())() {
  char* const code = room(kBytes, PROT_READ | PROT_WRITE | PROT_EXEC);
  const int next_line = kLine - 5;
  for (size_t i = 0; i + kLine < kBytes; i += kLine) {
    code[i] = '\xe9';
    memcpy(code + i + 1, &next_line, sizeof next_line);
  }
  code[kBytes - kLine] = '\xc3';
  return reinterpret_cast<void (*)()>(code);
}

class Caches {
 public:
  void fill() {
    for (size_t i = 0; i < kBytes; i += kLine) touch(data_ + i);
    for (size_t i = 0; i < kPages; ++i) touch(pages_ + i * kPage + i % (kPage / kLine) * kLine);
    code_();
  }

 private:
  static void touch(volatile char* at) { *at = static_cast<char>(*at + 1); }

  char* data_ = room(kBytes, PROT_READ | PROT_WRITE);
  char* pages_ = room(kPages * kPage, PROT_READ | PROT_WRITE);
  void (*code_)() = make_code();
};

struct Way {
  const char* name;
  const char* kernel;  // of launches.cu
  CUfunction handle = nullptr;
  std::vector<double> ns[2] = {};  // through the preload, and past it
};

double mean_of_most(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.resize(values.size() - values.size() / 20);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void measure(const char* label, int rounds) {
  using Clock = std::chrono::steady_clock;
  Way ways[] = {{"untracked", "bench_untracked"},
                {"fallback", "bench_fallback"},
                {"hit", "bench_hit"},
                {"hit_remap", "bench_hit_remap"},
                {"hit_chosen", "bench_hit_chosen"}};
  const CUstream stream = start_thread();
  std::vector<std::pair<Way*, bool>> turns;  // is it past the preload?
  for (Way& way : ways) {
    way.handle = load_kernel("launches", way.kernel);
    turns.insert(turns.end(), {{&way, false}, {&way, true}});
  }
  Arguments arguments;
  Caches caches;
  std::minstd_rand random;
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    std::shuffle(turns.begin(), turns.end(), random);
    for (const auto& [way, is_direct] : turns) {
      const auto function = is_direct ? cuda().direct_launch : cuda().launch;
      caches.fill();
      const auto begin = Clock::now();
      require(launch(function, way->handle, stream, arguments), way->name);
      const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
      if (round >= 0) way->ns[is_direct].push_back(elapsed.count());
    }
  }
  printf("%s: added ns", label);
  for (const Way& way : ways) {
    printf(", %s %.1f", way.name, mean_of_most(way.ns[0]) - mean_of_most(way.ns[1]));
  }
  printf("\n");
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  if (argc != 3 || atoi(argv[2]) <= 0) {
    fprintf(stderr, "usage: launch_cold LABEL ROUNDS\n");
    return 2;
  }
  fibshim::bench::measure(argv[1], atoi(argv[2]));
  return 0;
}
