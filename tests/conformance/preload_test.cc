// The shim beside other preloaded libraries: allocators that call dlsym from malloc (number 7 of
// tools/doc/driver_facts.md, section 7), AddressSanitizer, which wants to be first (23). And in processes where there is nothing for
// it to do, or that end in the middle of everything.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

struct Other {
  const char* name;
  const char* library;  // in build/tests/conformance, or a soname
  bool is_ours;
  const char* package;  // that has it
};

const Other kOthers[] = {
    {"OwnAllocator", "libconform_malloc.so", true, nullptr},
    {"Jemalloc", "libjemalloc.so.2", false, "libjemalloc2"},
    {"Tcmalloc", "libtcmalloc_minimal.so.4", false, "libtcmalloc-minimal4"},
};

void PrintTo(const Other& other, std::ostream* out) { *out << other.name; }

bool can_preload(const std::string& library) {
  const ProcessResult result = run_process({"/bin/true"}, {{"LD_PRELOAD", library}});
  return result.exit_code == 0 && result.err.empty();
}

class Beside : public testing::TestWithParam<std::tuple<Other, bool>> {};

TEST_P(Beside, EverythingHolds) {
  const auto& [other, is_first] = GetParam();
  const std::string library = other.is_ours ? conform_path(other.library) : other.library;
  if (!can_preload(library)) {
    ASSERT_NE(other.package, nullptr) << library << " cannot be preloaded";
    GTEST_SKIP() << "package " << other.package << " is not installed";
  }
  const std::string preload = is_first ? library + ":" + shim_path() : shim_path() + ":" + library;
  std::vector<std::vector<std::string>> cases = {{"hook", "cuLaunchKernel"},  {"reach", "dlsym"},
                                                 {"library_starts_cuda"},     {"fork_before_cuda"},
                                                 {"reach", "getproc5"},       {"many_threads"},
                                                 {"fork_after_cuda"},         {"reuse"},
                                                 {"graph_patch_one_argument"}};
  // A real driver that is started under the dynamic linker's lock waits for threads of its own, whose
  // malloc would wait for that lock, with the shim or without; and it allocates so much that the rest
  // takes long.
  if (is_real_driver()) cases.resize(2);
  for (const std::vector<std::string>& words : cases) {
    SCOPED_TRACE(words.front());
    std::vector<std::string> command = {"conform"};
    command.insert(command.end(), words.begin(), words.end());
    HostRun(command, {}, preload).expect_holds();
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Beside,
                         testing::Combine(testing::ValuesIn(kOthers), testing::Bool()),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) +
                                  (std::get<1>(one.param) ? "First" : "Last");
                         });

// The runtime that a sanitized host was built against, by the name that the linker finds it under.
std::string runtime_of(const std::string& host) {
  const ProcessResult result =
      run_shell("readelf -d " + conform_path(host) +
                " | sed -n 's/.*NEEDED.*\\[\\(lib[at]san[^]]*\\)\\]/\\1/p'");
  return result.out.substr(0, result.out.find('\n'));
}

const Environment kSanitizerOptions = {
    // The images stay loaded, and a driver maps what it likes.
    {"ASAN_OPTIONS", "detect_leaks=0:protect_shadow_gap=0"},
    {"SIMCUDA_LOG", ""}};

// Facts 23: the shim as it is, under a host that was built with a sanitizer; and the shim built with it,
// too. The runtime comes first.
struct Sanitized {
  const char* name;
  const char* host;
  const char* shim;  // null: as it is
};

const std::vector<std::vector<std::string>> kSanitizedCases = {
    {"hook", "cuLaunchKernel"},
    {"hook", "cuLaunchKernelEx"},
    {"hook", "cuGraphExecKernelNodeSetParams_v2"},
    {"hook", "cuGraphExecUpdate_v2"},
    {"exec_begins_early"},
    {"rewrite_needs_proof"},
    {"rewrite_keeps_the_order"},
    {"rewrite_is_undone"},
    {"rewrite_follows_its_kernels"},
    {"rewrite_follows_no_more"},
    {"updates_beside_take_few_calls"},
    {"hook", "cuStreamBeginCapture_v2"},
    {"hook", "cuCtxDestroy_v2"},
    {"hook", "cuLibraryGetModule"},
    {"reach", "dlsym"},
    {"many_threads"},
    {"reuse"},
    {"same_name_other_image"},
    {"graph_write_through_pointers"},
    {"capture_cold"},
    {"library_uses_cuda"},
    {"library_starts_cuda_beside_another_thread"},
    {"fork_before_cuda"},
    {"fork_under_load"},
    {"strangers"},
};

const Sanitized kSanitized[] = {
    {"AsanHost", "conform_asan", nullptr},
    {"AsanShim", "conform_asan", "asan/libfibshim.so"},
    {"TsanHost", "conform_tsan", nullptr},
    {"TsanShim", "conform_tsan", "tsan/libfibshim.so"},
};

void PrintTo(const Sanitized& sanitized, std::ostream* out) { *out << sanitized.name; }

class Sanitizers : public testing::TestWithParam<Sanitized> {};

TEST_P(Sanitizers, FindNothing) {
  const Sanitized& one = GetParam();
  if (is_real_driver())
    GTEST_SKIP() << "not for a real driver: it maps memory where sanitizers are";
  if (access(conform_path(one.host).c_str(), X_OK) != 0)
    GTEST_SKIP() << "make asan and make tsan run it";
  const std::string runtime = runtime_of(one.host);
  ASSERT_FALSE(runtime.empty());
  if (!can_preload(runtime)) GTEST_SKIP() << runtime << " is not on this machine";
  const std::string shim = one.shim == nullptr ? shim_path() : conform_path(one.shim);
  const auto expect_clean = [&](const std::vector<std::string>& words, Environment environment) {
    const bool has_faults = environment.contains("SIMCUDA_CHAOS");
    SCOPED_TRACE(words.front() + " " + words.back());
    std::vector<std::string> command = {one.host};
    command.insert(command.end(), words.begin(), words.end());
    environment.insert(kSanitizerOptions.begin(), kSanitizerOptions.end());
    environment["TSAN_OPTIONS"] =
        "die_after_fork=0:report_thread_leaks=0:report_signal_unsafe=0:suppressions=" +
        std::string(CONFORMANCE_FOLDER) + (one.shim == nullptr ? "/tsan_host.supp" : "/tsan.supp");
    const HostRun run(command, environment, runtime + ":" + shim, 120);
    has_faults ? run.expect_holds_with_faults() : run.expect_holds();
    EXPECT_LACKS(run.process().err, "Sanitizer");
  };
  for (const std::vector<std::string>& words : kSanitizedCases) expect_clean(words, {});
  // Of a shim that is not instrumented ThreadSanitizer does not see how its thread and the others publish
  // to each other.
  const bool sees_publication = one.shim != nullptr || one.host == std::string("conform_asan");
  for (const char* swap :
       {"swap_under_load", "swap_and_unload", "swap_and_graphs", "swap_and_fork"}) {
    if (!sees_publication) break;
    const std::string folders = make_swap_folders();
    expect_clean({swap, folders}, {{"FIBSHIM_CONFIG", folders + "/link"}, {"SIMCUDA_LOG", ""}});
  }
  const long first = number_from("CONFORMANCE_FIRST_SEED", 1);
  const long seeds = number_from("CONFORMANCE_SEEDS", 8);
  for (long seed = first; seed < first + seeds && !HasFailure(); ++seed) {
    expect_clean({"random", std::to_string(seed)}, devices_of(seed));
    expect_clean({"random", std::to_string(seed)}, faults_of(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Sanitizers, testing::ValuesIn(kSanitized), kByName);

TEST(AsanOrder, AsanSaysWhenItDoesNotComeFirst) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it is between ASan and the linker";
  if (access(conform_path("conform_asan").c_str(), X_OK) != 0) GTEST_SKIP() << "make asan runs it";
  if (!can_preload(runtime_of("conform_asan"))) GTEST_SKIP() << "ASan is not on this machine";
  const HostRun run({"conform_asan", "hook", "cuLaunchKernel"}, kSanitizerOptions);
  EXPECT_NE(run.process().exit_code, 0);
  EXPECT_CONTAINS(run.process().err, "come first");
}

// Python's workers, as engines have them: the parent has not used CUDA when it makes them.
TEST(Processes, WorkersOfMultiprocessing) {
  if (run_process({"/usr/bin/env", "python3", "-c", ""}).exit_code != 0) {
    GTEST_SKIP() << "python3 is not on this machine";
  }
  for (const char* how : {"fork", "forkserver", "spawn"}) {
    SCOPED_TRACE(how);
    const HostRun run({"workers.py", how, "3"});
    run.expect_holds();
    EXPECT_EQ(run.stated().size(), 4u);
  }
}

TEST(Processes, WithoutADriverThereIsNone) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it is there";
  const HostRun run({"conform", "without_driver"}, {{"LD_LIBRARY_PATH", ""}});
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  EXPECT_EQ(run.process().exit_code, 0) << run.process().err;
  EXPECT_TRUE(run.messages().empty()) << run.process().err;
}

// Facts 15. The threads go on until the very end; each may have counted one launch that was not made any
// more.
TEST(Processes, ExitWithLaunchesInFlight) {
  constexpr long threads = 4;
  for (int i = 0; i < 10; ++i) {
    const HostRun run({"conform", "exit_in_flight"});
    ASSERT_EQ(run.process().exit_code, 0) << run.process().err;
    const size_t at = run.process().out.find("launched ");
    ASSERT_NE(at, std::string::npos) << run.process().out;
    const long launched = atol(run.process().out.c_str() + at + 9);
    const Tally counted = run.counted();
    ASSERT_TRUE(counted.contains("hit"));
    EXPECT_GE(counted.at("hit"), launched);
    if (is_real_driver()) continue;
    const Tally logged = run.logged();
    EXPECT_LE(logged.at("ran:curated_n1"), counted.at("hit"));
    EXPECT_GE(logged.at("ran:curated_n1") + threads, counted.at("hit"));
  }
}

// Facts 21: a file for each process, and for each program that a process goes on with.
TEST(Processes, EachHasCountersOfItsOwn) {
  const HostRun run({"conform", "exec_after_cuda"});
  run.expect_holds();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(run.stats_dir())) {
    files += entry.path().extension() == ".counters";
  }
  EXPECT_EQ(files, 3);
  const HostRun forks({"conform", "fork_before_cuda"});
  forks.expect_holds();
  EXPECT_EQ(forks.stated().size(), 5u);
}

}  // namespace
}  // namespace fibshim::conformance
