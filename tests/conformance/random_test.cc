// Random programs; see hosts/random_cases.cc. A program is its seed. What ran is what the simulated
// driver recorded, or with a real one the marks that the kernels left.
//
// CONFORMANCE_SEEDS  how many programs each of the tests runs (default 40, of 8 tests; 2 with a real
//                    driver)
// CONFORMANCE_FIRST_SEED  the first seed (default 1): another thousand programs; or one again
#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

constexpr int kShards = 8;

long setting(const char* name, long unset) {
  const char* text = getenv(name);
  return text == nullptr ? unset : strtol(text, nullptr, 10);
}

class RandomPrograms : public testing::TestWithParam<int> {};

TEST_P(RandomPrograms, RunWhatTheyMustAndCountIt) {
  const long seeds = setting("CONFORMANCE_SEEDS", is_real_driver() ? 2 : 40);
  const long first = setting("CONFORMANCE_FIRST_SEED", 1);
  for (long i = 0; i < seeds; ++i) {
    const long seed = first + i * kShards + GetParam();
    SCOPED_TRACE("conform random " + std::to_string(seed));
    // Where GPUs are unlike, every launch depends on its device.
    const Environment devices = {{"SIMCUDA_DEVICES", seed % 4 == 3 ? "90,80" : "90"}};
    HostRun({"conform", "random", std::to_string(seed)}, devices).expect_holds();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, RandomPrograms, testing::Range(0, kShards));

}  // namespace
}  // namespace fibshim::conformance
