#include "tools/counters/step_times.h"

#include <memory>

#include "tools/base/file_descriptor.h"

namespace fibshim::tools {

std::vector<StepTimes> read_step_times(int folder_fd, const std::string& file) {
  const FileDescriptor fd(
      openat(folder_fd, file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const auto header = std::make_unique<FileHeader>();
  std::vector<StepTimes> out(kTimedGraphs);
  const size_t bytes = out.size() * sizeof(StepTimes);
  if (!fd || pread(fd.get(), header.get(), sizeof(FileHeader), 0) != sizeof(FileHeader) ||
      header->version != kCountersVersion ||
      pread(fd.get(), out.data(), bytes, static_cast<off_t>(header->steps_at)) !=
          static_cast<ssize_t>(bytes)) {
    return {};
  }
  return out;
}

Steps steps_between(const std::vector<StepTimes>& before, const std::vector<StepTimes>& after) {
  Steps out;
  for (size_t graph = 0; graph < before.size() && graph < after.size(); ++graph) {
    const auto added = [&](uint32_t bucket) -> uint64_t {
      return after[graph].intervals[bucket] - before[graph].intervals[bucket];
    };
    uint64_t count = 0;
    for (uint32_t bucket = 0; bucket < kStepBuckets; ++bucket) count += added(bucket);
    if (count <= out.count) continue;
    // Interpolates: within its bucket, the median's position is the share of intervals before it.
    uint64_t left = count / 2;
    uint32_t bucket = 0;
    while (added(bucket) <= left) left -= added(bucket++);
    const double begin = static_cast<double>(step_bucket_begin(bucket));
    const double width = static_cast<double>(step_bucket_begin(bucket + 1)) - begin;
    const double share = static_cast<double>(left) / static_cast<double>(added(bucket));
    out = {count, (begin + width * share) / 1000};
  }
  return out;
}

}  // namespace fibshim::tools
