// Properties of the built libfibshim.so: its exports, the libraries that it needs, and the symbols
// to which its launch path may refer. They keep the promises of a preloaded library to every
// process that maps it.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/process.h"

namespace fibshim {
namespace {

std::set<std::string> lines_of(const std::string& command) {
  const ProcessResult result = run_shell(command);
  EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.err;
  std::set<std::string> lines;
  std::istringstream in(result.out);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.insert(line);
  }
  return lines;
}

std::set<std::string> hook_table_names() {
  std::set<std::string> names = {
#define HOOK(name, type) #name,
#define EXPORT(name) #name,
#include "shim/driver/hook_table.h"
#undef HOOK
  };
  return names;
}

std::string library(const std::string& name) { return build_dir() + "/lib/" + name; }
std::string shim() { return library("libfibshim.so"); }

std::set<std::string> exports_of(const std::string& file) {
  return lines_of("nm -D --defined-only " + file + " | awk '{print $3}'");
}

std::set<std::string> needed_by(const std::string& file) {
  return lines_of("readelf -d " + file + " | sed -n 's/.*NEEDED.*\\[\\(.*\\)\\]/\\1/p'");
}

TEST(ShimBinary, ExportsTheHookTableAndNothingElse) {
  EXPECT_EQ(exports_of(shim()), hook_table_names());
}

TEST(ShimBinary, ExportsDlsymWithoutAVersion) {
  // With a version, references to dlsym@GLIBC_2.2.5 and @GLIBC_2.34 would not be bound to it.
  const auto lines = lines_of("nm -D --defined-only --with-symbol-versions " + shim() +
                              " | grep -E ' (dlsym|dlvsym|dlopen)' | awk '{print $3}'");
  EXPECT_EQ(lines, (std::set<std::string>{"dlsym", "dlvsym", "dlopen"}));
}

TEST(OpenedLibraries, ExportTheirOneEntryPoint) {
  EXPECT_EQ(exports_of(library("libfibloader.so")), std::set<std::string>{"fibloader_api"});
  EXPECT_EQ(exports_of(library("libfibrecord.so")), std::set<std::string>{"fibrecord_api"});
  EXPECT_EQ(exports_of(library("libfibshadow.so")), std::set<std::string>{"fibshadow_api"});
}

// The shim and the libraries that it opens in engines' processes.
class SmallLibrary : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, SmallLibrary,
                         testing::Values("libfibshim.so", "libfibrecord.so", "libfibshadow.so"));

TEST_P(SmallLibrary, NeedsLibcOnly) {
  const auto needed = needed_by(library(GetParam()));
  for (const std::string& name : needed) {
    EXPECT_TRUE(name == "libc.so.6" || name.starts_with("ld-linux")) << name;
  }
  EXPECT_TRUE(needed.contains("libc.so.6"));
}

TEST_P(SmallLibrary, RunsOnGlibc234) {
  const auto versions =
      lines_of("readelf -V " + library(GetParam()) + " | grep -o 'GLIBC_[0-9.]*' | sort -Vu");
  EXPECT_FALSE(versions.empty());
  for (const std::string& version : versions) {
    int major = 0;
    int minor = 0;
    ASSERT_EQ(sscanf(version.c_str(), "GLIBC_%d.%d", &major, &minor), 2) << version;
    EXPECT_LE(major * 100 + minor, 234) << version;
  }
}

TEST(ShimBinary, TakesAFewWordsOfStaticTls) {
  // Static TLS is scarce: libraries that are loaded later may need the rest.
  const auto sizes = lines_of("readelf -lW " + shim() + " | awk '$1 == \"TLS\" {print $6}'");
  ASSERT_EQ(sizes.size(), 1u);
  EXPECT_LE(std::stoul(*sizes.begin(), nullptr, 16), 48u);
}

// Symbols that an object of the shim refers to and does not define.
std::set<std::string> undefined_in(const std::string& object) {
  return lines_of("nm -u -C " + build_dir() + "/obj/shim/" + object + " | sed 's/^ *[Uw] //'");
}

// The list of all symbols to which the fast side may refer. A forbidden lock, allocation, getenv,
// dlsym, log line, exception, driver call or C++ runtime would show as another symbol.
TEST(ShimBinary, FastSideRefersToNothingThatIsForbidden) {
  const std::set<std::string> allowed = {
      "_GLOBAL_OFFSET_TABLE_",
      // Data that it reads.
      "fibshim::t_fast_reader",
      "fibshim::g_handle_table",
      "fibshim::g_near_mask",
      "fibshim::g_slow_reasons",
      "fibshim::g_handle_changes",
      // Functions to which it passes the launch.
      "fibshim::real::cuLaunchKernel",
      "fibshim::real::cuLaunchKernel_ptsz",
      "fibshim::real::cuLaunchKernelEx",
      "fibshim::real::cuLaunchKernelEx_ptsz",
      "fibshim::real::cuLaunchCooperativeKernel",
      "fibshim::real::cuLaunchCooperativeKernel_ptsz",
      "fibshim_return_result",
      "fibshim::route_slowly(fibshim::LaunchFrame&, fibshim::LaunchFunctions const&)",
      "fibshim::launch_config_slowly(CUlaunchConfig_st const*, CUfunc_st*, void**, void**, "
      "fibshim::LaunchFunctions const&)",
      "fibshim::end_failed_launch(unsigned int, cudaError_enum, bool)",
      // The plan, which is pure.
      "fibshim::unpack_extra(fibshim::Record const&, void**, void**)",
      "fibshim::rule_of(CUlaunchAttributeID_enum)",
  };
  const auto undefined = undefined_in("launch/fast.o");
  EXPECT_FALSE(undefined.empty());
  for (const std::string& symbol : undefined) EXPECT_TRUE(allowed.contains(symbol)) << symbol;
}

// The driver leaves little of the caches between two launches (shim/base/hot.h).
TEST(ShimBinary, FastSideReadsItsVariablesFromOneLine) {
  std::set<uint64_t> lines;
  size_t count = 0;
  for (const std::string& line : lines_of("nm -C " + shim() +
                                          " | grep -E ' "
                                          "fibshim::(g_handle_table|g_near_mask|real::cuLaunch("
                                          "Cooperative)?Kernel(Ex)?(_ptsz)?)$'")) {
    lines.insert(strtoull(line.c_str(), nullptr, 16) / 64);
    ++count;
  }
  EXPECT_EQ(count, 8u);
  EXPECT_EQ(lines.size(), 1u);
}

TEST(ShimBinary, PlanRefersToNothingOutsideItself) {
  const std::set<std::string> allowed = {
      "_GLOBAL_OFFSET_TABLE_", "memcmp", "memcpy", "memset", "snprintf", "strcmp"};
  for (const char* const object :
       {"plan/plan.o", "plan/fit.o", "plan/resolution.o", "plan/remembered.o"}) {
    for (const std::string& symbol : undefined_in(object)) {
      const bool is_of_plan = symbol.starts_with("fibshim::fits_binding(") ||
                              symbol.starts_with("fibshim::fits_program(");
      EXPECT_TRUE(is_of_plan || allowed.contains(symbol)) << object << ": " << symbol;
    }
  }
}

TEST(LoaderBinary, NeedsOnlyLibcAndWhatLiesBesideIt) {
  for (const std::string& name : needed_by(library("libfibloader.so"))) {
    const bool is_libc = name == "libc.so.6" || name == "libm.so.6" || name.starts_with("ld-linux");
    EXPECT_TRUE(is_libc || std::ifstream(library(name)).good()) << name;
  }
}

}  // namespace
}  // namespace fibshim
