#include "tools/judge/launch_times.h"

#include <algorithm>
#include <numeric>

namespace fibshim::judge {
namespace {

constexpr int kGraphLaunches = 20;
constexpr int kVerifyWarmups = 3, kVerifyIterations = 10;
constexpr uint64_t kFlushFactor = 2;

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

Result<void> time_launches(Gpu* gpu, const TrialOptions& options, CUfunction kernel,
                           const Launch& launch, CUdeviceptr* flush_buffer, CaseOutcome* outcome) {
  const bool is_bench = options.is_bench;
  const int warmups = is_bench ? options.warmups : kVerifyWarmups;
  const int iterations = is_bench ? options.iterations : kVerifyIterations;
  const int trials = is_bench ? options.trials : 1;
  const size_t flush_bytes = kFlushFactor * gpu->info().l2_bytes;
  const bool flushes = is_bench && options.flushes_l2 && !options.uses_graph && flush_bytes > 0;
  if (flushes && *flush_buffer == 0) *flush_buffer = FIBSHIM_TRY(gpu->allocate(flush_bytes));
  const auto flush = [&] {
    return flushes ? gpu->fill32(*flush_buffer, 0, flush_bytes / sizeof(uint32_t)) : Result<void>();
  };
  CUgraphExec graph = nullptr;
  const bool uses_graph = is_bench && options.uses_graph;
  if (uses_graph) graph = FIBSHIM_TRY(gpu->capture(kernel, launch, kGraphLaunches));
  const auto work = [&] {
    return uses_graph ? gpu->launch_graph(graph) : gpu->launch(kernel, launch);
  };
  std::vector<double> all;
  for (int trial = 0; trial < trials; ++trial) {
    for (int i = 0; i < warmups; ++i) FIBSHIM_TRY(work());
    std::vector<double> times = FIBSHIM_TRY(gpu->time(iterations, flush, work));
    for (double& time : times) time /= uses_graph ? kGraphLaunches : 1;
    outcome->trial_ms.push_back(quantile(times, 0.5));
    all.insert(all.end(), times.begin(), times.end());
  }
  outcome->latency_ms = std::accumulate(outcome->trial_ms.begin(), outcome->trial_ms.end(), 0.0) /
                        static_cast<double>(outcome->trial_ms.size());
  outcome->lowest_ms = quantile(all, 0.1);
  outcome->highest_ms = quantile(all, 0.9);
  return {};
}

Result<double> measure_copy_bandwidth(Gpu* gpu) {
  constexpr int kCopies = 10;
  const size_t bytes = std::clamp<size_t>(8 * gpu->info().l2_bytes, size_t{64} << 20,
                                          std::max<size_t>(gpu->info().free_bytes / 4, 1 << 20));
  const CUdeviceptr from = FIBSHIM_TRY(gpu->allocate(bytes));
  const CUdeviceptr to = FIBSHIM_TRY(gpu->allocate(bytes));
  const auto nothing = [] { return Result<void>(); };
  const auto copy = [&] { return gpu->copy(to, from, bytes); };
  for (int i = 0; i < 2; ++i) FIBSHIM_TRY(copy());
  const std::vector<double> times = FIBSHIM_TRY(gpu->time(kCopies, nothing, copy));
  (void)gpu->release(from);
  (void)gpu->release(to);
  const double seconds = quantile(times, 0.5) / 1e3;
  return seconds > 0 ? 2 * static_cast<double>(bytes) / seconds : 0.0;
}

}  // namespace fibshim::judge
