// Every row of shim/driver/hook_table.h: reached in every way that a host has, and doing what it is for.

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

const char* const kHooks[] = {
#define HOOK(name, type) #name,
#include "shim/driver/hook_table.h"
#undef HOOK
};

class EveryHook : public testing::TestWithParam<const char*> {};

TEST_P(EveryHook, DoesWhatItIsFor) {
  const HostRun run({"conform", "hook", GetParam()});
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  run.expect_holds(0);
  run.expect_all_executed();
}

INSTANTIATE_TEST_SUITE_P(Conformance, EveryHook, testing::ValuesIn(kHooks), kByItself);

}  // namespace
}  // namespace fibshim::conformance
