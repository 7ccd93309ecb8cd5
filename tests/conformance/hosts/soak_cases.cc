// `conform soak SECONDS SAMPLES LOAD`: eight threads of random_worker.h run for SECONDS, in SAMPLES
// rounds, each thread busy for LOAD percent of the time. After each round, when no thread runs, the
// expected launches are compared with the simulated driver's record, and the counters with all
// launches. Then one line shows the process's resources:
//
//   sample round=3 launches=81240 hits=31200 rss_kib=61240 shim_kib=1664 files=7 threads=1
#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <time.h>

#include <thread>

#include "tests/conformance/hosts/random_worker.h"

namespace conform {
namespace {

constexpr int kThreads = 8;
constexpr int kOperations = 60;  // of a worker, before it unloads all and a new one replaces it

int64_t now_ns(clockid_t clock) {
  timespec now;
  CHECK(clock_gettime(clock, &now) == 0);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

struct Sum {
  Ran ran;
  Counts counts;
  long programs = 0;
};

void work(const Gpu& gpu, uint64_t seed, int64_t until_ns, int load, Sum* sum) {
  Random random(seed);
  while (now_ns(CLOCK_MONOTONIC) < until_ns) {
    const int64_t before_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
    Worker worker(gpu, random.next(), false);
    worker.run(kOperations);
    add(&sum->ran, worker.ran());
    add(&sum->counts, worker.counts());
    ++sum->programs;
    const int64_t busy_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - before_ns;
    const int64_t rest_ns = busy_ns * (100 - load) / load;
    const timespec rest = {rest_ns / 1'000'000'000, rest_ns % 1'000'000'000};
    nanosleep(&rest, nullptr);
  }
}

long entries_of(const char* folder) {
  DIR* dir = opendir(folder);
  CHECK(dir != nullptr);
  long count = 0;
  while (const dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

long shim_kib() {
  using Function = long();
  const auto mapped = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, "conform_mapped_bytes"));
  CHECK(mapped != nullptr);
  return mapped() / 1024;
}

// Adds `sign` times the counts by outcome that follow `key` in the text.
void add_counts(const std::string& text, const char* key, int sign, long* launches, long* hits) {
  const size_t begin = text.find(key);
  CHECK(begin != std::string::npos);
  const std::string totals = text.substr(begin, text.find('}', begin) - begin);
  for (size_t at = totals.find('{'); (at = totals.find('"', at)) != std::string::npos;) {
    const size_t end = totals.find('"', at + 1);
    const std::string name = totals.substr(at + 1, end - at - 1);
    const long count = sign * atol(totals.c_str() + totals.find(':', end) + 1);
    *launches += count;
    if (name == "hit") *hits += count;
    at = end + 1;
  }
}

// Reads from this process's counters the number of launches, and of those that were redirected;
// without nodes of graphs, which a worker with faults does not count.
void read_counters(long* launches, long* hits) {
  const std::string command = "LD_PRELOAD= exec '" + data_path("../../bin/fibshim") +
                              "' stats --json --pid " + std::to_string(getpid());
  FILE* pipe = popen(command.c_str(), "re");
  CHECK(pipe != nullptr);
  std::string text;
  char part[4096];
  for (size_t got; (got = fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, got);
  CHECK(pclose(pipe) == 0);
  *launches = *hits = 0;
  add_counts(text, "\"totals\"", 1, launches, hits);
  add_counts(text, "\"nodes\"", -1, launches, hits);
}

}  // namespace
}  // namespace conform

using namespace conform;

CASE(soak) {
  CHECK(has_faults());  // none strike, but workers then read launches from the driver's record
  const int64_t seconds = atoll(arguments.at(0).c_str());
  const int samples = atoi(arguments.at(1).c_str());
  const int load = atoi(arguments.at(2).c_str());
  CHECK(seconds > 0 && samples > 0 && load > 0 && load <= 100);
  const Gpu gpu;
  Random random(1);
  Sum all;
  const int64_t begin_ns = now_ns(CLOCK_MONOTONIC);
  for (int round = 1; round <= samples; ++round) {
    const int64_t until_ns = begin_ns + seconds * 1'000'000'000 * round / samples;
    std::vector<Sum> sums(kThreads);
    std::vector<std::thread> threads;
    for (Sum& sum : sums) {
      threads.emplace_back(work, std::cref(gpu), random.next(), until_ns, load, &sum);
    }
    for (std::thread& thread : threads) thread.join();
    for (const Sum& sum : sums) {
      add(&all.ran, sum.ran);
      add(&all.counts, sum.counts);
      all.programs += sum.programs;
    }
    gpu.expect_ran(all.ran);
    long launches = 0;
    long hits = 0;
    read_counters(&launches, &hits);
    EXPECT_EQUAL(total(all.counts), launches);
    EXPECT_EQUAL(all.counts.hit, hits);
    malloc_trim(0);  // free memory is not counted
    printf(
        "sample round=%d programs=%ld launches=%ld hits=%ld rss_kib=%ld shim_kib=%ld files=%ld "
        "threads=%ld\n",
        round, all.programs, launches, hits, resident_bytes() / 1024, shim_kib(),
        entries_of("/proc/self/fd"), entries_of("/proc/self/task"));
    fflush(stdout);
  }
  state_faulted(all.ran, all.counts.hit, total(all.counts), 0, 0);
}
