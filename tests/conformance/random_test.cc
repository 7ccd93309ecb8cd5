// Random programs; see hosts/random_cases.cc. A program is its seed. What ran is what the simulated
// driver recorded, or with a real one the marks that the kernels left.
//
// CONFORMANCE_SEEDS  how many programs each of the tests runs (default 8, of 8 tests; 2 with a real
//                    driver), and each sanitizer (default 8)
// CONFORMANCE_FIRST_SEED  the first seed (default 1): another thousand programs; or one again

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

constexpr int kShards = 8;

class RandomPrograms : public testing::TestWithParam<int> {};

TEST_P(RandomPrograms, RunWhatTheyMustAndCountIt) {
  const long seeds = number_from("CONFORMANCE_SEEDS", is_real_driver() ? 2 : 8);
  ASSERT_GT(seeds, 0) << "CONFORMANCE_SEEDS";
  const long first = number_from("CONFORMANCE_FIRST_SEED", 1);
  for (long i = 0; i < seeds && !HasFailure(); ++i) {
    const long seed = first + i * kShards + GetParam();
    SCOPED_TRACE("conform random " + std::to_string(seed));
    const HostRun run({"conform", "random", std::to_string(seed)}, devices_of(seed));
    EXPECT_EQ(run.process().exit_code, 0);
    run.expect_holds();
  }
}

// Faults by the same seed strike in the driver meanwhile.
TEST_P(RandomPrograms, WithFaultsGetWhatTheyAskedForOrAnError) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it makes driver calls fail";
  const long seeds = number_from("CONFORMANCE_SEEDS", 8);
  const long first = number_from("CONFORMANCE_FIRST_SEED", 1);
  for (long i = 0; i < seeds && !HasFailure(); ++i) {
    const long seed = first + i * kShards + GetParam();
    SCOPED_TRACE("conform random " + std::to_string(seed));
    HostRun({"conform", "random", std::to_string(seed)}, faults_of(seed))
        .expect_holds_with_faults();
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, RandomPrograms, testing::Range(0, kShards));

}  // namespace
}  // namespace fibshim::conformance
