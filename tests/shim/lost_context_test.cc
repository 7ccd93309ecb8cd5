// A kernel has corrupted its context: the preloaded shim says so once, with the replacements that
// ran.
#include <gtest/gtest.h>

#include <string>

#include "shim/driver/sticky_errors.h"
#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

// Faults for the kernels of the folder's solutions, and for the engine's own.
constexpr char kReplacement[] = "poison:rmsnorm_*=";
constexpr char kOriginal[] = "poison:*layer_norm*=";

EngineRun run_engine(const std::string& faults, std::vector<std::string> arguments,
                     Environment environment = {}) {
  arguments.push_back("--hidden=128");
  environment["SIMCUDA_FAIL"] = faults;
  return PreloadedEngine().run(arguments, pytorch_config(), environment);
}

int lines_with(const EngineRun& run, const std::string& part) {
  int found = 0;
  for (const std::string& line : run.messages()) found += line.find(part) != std::string::npos;
  return found;
}

std::string solution() {
  return "rmsnorm_h128 (solution fibshim_rmsnorm_h128 of " + pytorch_config() + ")";
}

// The first launch corrupts the context; the second one returns the error.
TEST(LostContext, NamesTheReplacementsThatRan) {
  const EngineRun run = exits(1, run_engine(std::string(kReplacement) + "700", {"--launches=2"}));
  EXPECT_CONTAINS(run.process.out, "\"code\":700");
  ASSERT_EQ(run.messages().size(), 3u) << run.process.err;
  EXPECT_CONTAINS(run.messages()[0],
                  "a launch returns CUDA_ERROR_ILLEGAL_ADDRESS (700): the CUDA "
                  "context 0x");
  EXPECT_CONTAINS(run.messages()[1], "replacements that have run there: " + solution())
      << run.process.err;
  EXPECT_CONTAINS(run.messages()[2], "compute-sanitizer or CUDA_LAUNCH_BLOCKING=1");
}

// The engine ends at its first error. That may be what a wait returns, which is no hook, before a
// launch has returned it: then nothing is reported, and it is run again.
TEST(LostContext, IsReportedOnceHoweverManyCallsFail) {
  for (const char* on_error : {"fail", "fallback"}) {
    int reported = 0;
    for (int attempt = 0; attempt < 20 && reported == 0; ++attempt) {
      const EngineRun run =
          exits(1, run_engine(std::string(kReplacement) + "700", {"--launches=20", "--threads=4"},
                              {{"FIBSHIM_ON_ERROR", on_error}}));
      reported = lines_with(run, "is lost");
      EXPECT_LE(reported, 1) << run.process.err;
      // Later launches fail, too, but are not reported as failures of their solution.
      EXPECT_EQ(lines_with(run, "the launch of its solution"), 0) << run.process.err;
    }
    EXPECT_EQ(reported, 1) << on_error;
  }
}

TEST(LostContext, EveryStickyErrorIsToldByName) {
  for (const StickyError& error : kStickyErrors) {
    const EngineRun run =
        run_engine(kReplacement + std::to_string(static_cast<int>(error.code)), {"--launches=2"});
    EXPECT_EQ(lines_with(run, " (" + std::to_string(error.code) + "): the CUDA context"), 1)
        << run.process.err;
    EXPECT_EQ(lines_with(run, error.cause), 1) << run.process.err;
    EXPECT_EQ(run.messages().size(), error.cause == kHardwareFault ? 1u : 3u) << run.process.err;
  }
}

TEST(LostContext, OtherErrorsAreNot) {
  for (const char* code : {"2", "600", "701", "720", "900", "999"}) {
    const EngineRun run = run_engine(std::string(kReplacement) + code, {"--launches=2"});
    EXPECT_EQ(run.process.exit_code, 1) << code;
    EXPECT_EQ(lines_with(run, "is lost"), 0) << run.process.err;
  }
}

TEST(LostContext, IsNotReportedWhereTheShimDoesNothing) {
  const EngineRun run = exits(
      1, run_engine(std::string(kOriginal) + "700", {"--launches=2"}, {{"FIBSHIM_MODE", "off"}}));
  EXPECT_TRUE(run.messages().empty()) << run.process.err;
}

}  // namespace
}  // namespace fibshim
