// Eight threads for long, modules coming and going, and swaps meanwhile; see hosts/soak_cases.cc.
// The host compares every launch and every count with the driver's record as it goes; here it is
// seen that nothing grows.
//
//   SOAK_SECONDS  how long (default 10)
//   SOAK_LOAD     percent of its time that each of the threads is busy (default 100)
//   SOAK_TABLE    file that gets the samples, as JSON lines
//   SOAK_SWAPS    1, 0: swap, or do not (default: where `fibshim swap` is known). Each second the
//                 symlink that FIBSHIM_CONFIG names leads elsewhere: to one folder, to another, now
//                 and then to a broken one, which must be refused; or all is switched off and on
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

std::string command_line_program() { return build_dir() + "/bin/fibshim"; }

bool can_swap() {
  const char* asked = getenv("SOAK_SWAPS");
  if (asked != nullptr) return std::string(asked) == "1";
  return run_process({command_line_program(), "swap", "--help"}).exit_code == 0;
}

void point(const fs::path& link, const fs::path& folder) {
  fs::remove(link.string() + ".new");
  fs::create_directory_symlink(folder, link.string() + ".new");
  fs::rename(link.string() + ".new", link);
}

// Two folders that serve alike, and a broken one.
struct Folders {
  Folders() {
    for (const char* name : {"a", "b", "broken"}) {
      fs::copy(conform_path("config"), root / name, fs::copy_options::recursive);
    }
    // Another digest, the same launches.
    std::ofstream(root / "b" / "definitions" / "conform_n1.json", std::ios::app) << "\n";
    std::ofstream(root / "broken" / "patterns" / "conform-step.json") << "{";
    point(link, root / "a");
  }
  const fs::path root = make_temporary_dir();
  const fs::path link = root / "current";
};

// Swaps each second until it ends.
class Swapper {
 public:
  Swapper(const Folders& folders, const Environment& environment)
      : folders_(folders), environment_(environment), thread_([this] { run(); }) {}
  ~Swapper() {
    {
      const std::lock_guard guard(lock_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Swapper(const Swapper&) = delete;
  Swapper& operator=(const Swapper&) = delete;

 private:
  void run() {
    std::unique_lock guard(lock_);
    for (int i = 0; !changed_.wait_for(guard, std::chrono::seconds(1), [&] { return is_over_; });
         ++i) {
      if (i % 10 == 6) {
        (void)run_process({command_line_program(), "swap", "--off", "--all"}, environment_);
      } else if (i % 10 == 7) {
        (void)run_process({command_line_program(), "swap", folders_.link.string(), "--all"},
                          environment_);
      } else {
        point(folders_.link, folders_.root / (i % 10 == 3 ? "broken" : i % 2 == 0 ? "b" : "a"));
      }
    }
  }

  const Folders& folders_;
  const Environment environment_;
  std::mutex lock_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

using Sample = std::map<std::string, long>;

std::vector<Sample> samples_in(const std::string& out) {
  std::vector<Sample> samples;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string word;
    if (!(in >> word) || word != "sample") continue;
    Sample sample;
    while (in >> word) {
      const size_t equals = word.find('=');
      sample[word.substr(0, equals)] = std::stol(word.substr(equals + 1));
    }
    samples.push_back(sample);
  }
  return samples;
}

// What a straight line through the samples rises by, from the first to the last. Least squares.
double rise_of(const std::vector<Sample>& samples, const std::string& name) {
  const auto count = static_cast<double>(samples.size());
  double sum_x = 0;
  double sum_y = 0;
  double sum_xx = 0;
  double sum_xy = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto x = static_cast<double>(i);
    const auto y = static_cast<double>(samples[i].at(name));
    sum_x += x;
    sum_y += y;
    sum_xx += x * x;
    sum_xy += x * y;
  }
  const double slope = (count * sum_xy - sum_x * sum_y) / (count * sum_xx - sum_x * sum_x);
  return slope * (count - 1);
}

void write_table(const std::vector<Sample>& samples) {
  const char* path = getenv("SOAK_TABLE");
  if (path == nullptr) return;
  std::ofstream out(path);
  for (const Sample& sample : samples) out << nlohmann::json(sample).dump() << "\n";
}

// What a host under load of so many seconds measures of itself.
std::vector<Sample> soak(long seconds) {
  const long load = number_from("SOAK_LOAD", 100);
  const long sample_count = std::max(20L, seconds / 60);
  const Folders folders;
  const std::string preload = conform_path("libconform_libc_faults.so") + ":" + shim_path();
  const std::string stats_dir = make_temporary_dir() + "/stats";
  // No fault strikes; the driver's record is what launches are compared with. With one arena malloc can
  // return all free memory; the tops of several keep an image or two by chance.
  Environment environment = {{"SIMCUDA_CHAOS", "seed=1"},
                             {"MALLOC_ARENA_MAX", "1"},
                             {"SIMCUDA_LOG", ""},
                             {"FIBSHIM_CONFIG", folders.link.string()},
                             {"FIBSHIM_STATS_DIR", stats_dir}};
  const bool swaps = can_swap();
  if (swaps) environment["CONFORM_SWAPS"] = "1";
  std::optional<Swapper> swapper;
  if (swaps) swapper.emplace(folders, Environment{{"FIBSHIM_STATS_DIR", stats_dir}});
  const HostRun run({"conform", "soak", std::to_string(seconds), std::to_string(sample_count),
                     std::to_string(load)},
                    environment, preload, static_cast<int>(seconds) + 120);
  EXPECT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  EXPECT_TRUE(swaps || run.messages().empty()) << run.process().err;
  std::vector<Sample> samples = samples_in(run.process().out);
  EXPECT_EQ(samples.size(), static_cast<size_t>(sample_count));
  return samples;
}

TEST(Soak, NothingGrowsAndEveryLaunchIsCounted) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it asks the simulated one what ran";
  constexpr double kMostShimKib = 512;
  std::vector<Sample> samples;
  const auto most_kib = [&] {
    return std::max(1024.0, static_cast<double>(samples.front().at("rss_kib")) * 0.02);
  };
  // A peak of what waits for a grace period, on a busy machine, takes one more chunk of 256 KiB for each of several
  // pools, once. A leak goes on: it rises as fast in the longer run, and so farther.
  long seconds = number_from("SOAK_SECONDS", 10);
  for (const bool is_last : {false, true}) {
    samples = soak(seconds);
    if (HasFailure()) return;
    write_table(samples);
    // The first quarter warms up: rings, tables and pools reach the size that the load needs.
    samples.erase(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(samples.size() / 4));
    if (is_last ||
        (rise_of(samples, "shim_kib") < kMostShimKib && rise_of(samples, "rss_kib") < most_kib()))
      break;
    seconds *= 3;
  }
  const Sample& first = samples.front();
  const Sample& last = samples.back();
  EXPECT_GT(last.at("hits"), 0);
  EXPECT_GT(last.at("launches"), last.at("hits"));
  EXPECT_LT(rise_of(samples, "rss_kib"), most_kib());
  EXPECT_LT(rise_of(samples, "shim_kib"), kMostShimKib);
  // More at first, if a swap reads a folder just then.
  EXPECT_LE(last.at("files"), first.at("files"));
  EXPECT_EQ(last.at("threads"), first.at("threads"));
  printf(
      "%ld s, 8 threads: %ld launches, %ld redirected, %ld programs; RSS %ld -> %ld KiB, the "
      "shim's %ld -> %ld "
      "KiB, files %ld, threads %ld, swaps %s\n",
      seconds, last.at("launches"), last.at("hits"), last.at("programs"), first.at("rss_kib"),
      last.at("rss_kib"), first.at("shim_kib"), last.at("shim_kib"), last.at("files"),
      last.at("threads"), can_swap() ? "on" : "off");
}

// A link that leads elsewhere a thousand times under load: the last folder is the one in force.
TEST(Soak, ALinkIsRepointedAThousandTimes) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it asks the simulated one what ran";
  if (!can_swap()) GTEST_SKIP() << "`fibshim swap` is not known";
  const Folders folders;
  const std::string stats_dir = make_temporary_dir() + "/stats";
  const Environment environment = {{"SIMCUDA_CHAOS", "seed=1"},
                                   {"SIMCUDA_LOG", ""},
                                   {"CONFORM_SWAPS", "1"},
                                   {"FIBSHIM_CONFIG", folders.link.string()},
                                   {"FIBSHIM_STATS_DIR", stats_dir}};
  std::atomic<bool> is_over{false};
  std::thread pointer([&] {
    for (int i = 0; i < 1000; ++i) point(folders.link, folders.root / (i % 2 == 0 ? "b" : "a"));
    point(folders.link, folders.root / "b");
    is_over.store(true);
  });
  const HostRun run({"conform", "soak", "5", "5", "100"}, environment,
                    conform_path("libconform_libc_faults.so") + ":" + shim_path());
  pointer.join();
  ASSERT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  ASSERT_TRUE(is_over.load());
  const ProcessResult stats =
      run_process({command_line_program(), "stats", "--json"}, {{"FIBSHIM_STATS_DIR", stats_dir}});
  const nlohmann::json json = nlohmann::json::parse(stats.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << stats.out << stats.err;
  const std::string text = json["processes"][0].dump();
  EXPECT_NE(text.rfind((folders.root / "b").string()), std::string::npos) << text;
}

//   GROWTH_EXECS  how many execs of each kind (default 2,000; on a real driver 100,000)
TEST(Soak, ExecsLeaveNoMemoryBehind) {
  const long execs = number_from("GROWTH_EXECS", is_real_driver() ? 100'000 : 2'000);
  const HostRun run({"conform", "exec_growth", std::to_string(execs)},
                    {{"SIMCUDA_LOG", ""}, {"SIMCUDA_FAST", "1"}}, shim_path(), 300);
  EXPECT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  printf("%s", run.process().out.c_str());
}

}  // namespace
}  // namespace fibshim::conformance
