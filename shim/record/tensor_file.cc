#include "shim/record/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/abi/writers.h"
#include "shim/base/process_file.h"

namespace fibshim {
namespace {

constexpr uint64_t kHeaderBytes = 4096;
constexpr uint64_t kMostPlanBytes = uint64_t{64} << 20;

ProcessFile g_file;
TensorsHeader* g_header;

// True if the program's steps lie within the plan. That it fits the stack of run_program() is up to
// the plan's maker.
bool is_program(const TensorPlan& plan, uint32_t first, uint32_t count) {
  return count != 0 && first <= plan.step_count && count <= plan.step_count - first;
}

bool is_sound(const ReadPlan& read) {
  const TensorPlan& plan = *read.plan;
  for (uint32_t i = 0; i < plan.entry_count; ++i) {
    const TensorPlanEntry& entry = read.entries[i];
    if (entry.value_count > kMostTensorValues || entry.tensor_count > kMostTensors ||
        entry.first_value > plan.value_count ||
        entry.value_count > plan.value_count - entry.first_value ||
        entry.first_tensor > plan.tensor_count ||
        entry.tensor_count > plan.tensor_count - entry.first_tensor ||
        (plan.policy == TensorPolicy::by_axis && entry.policy_value >= entry.value_count)) {
      return false;
    }
    for (uint32_t j = 0; j < entry.value_count; ++j) {
      const TensorPlanValue& value = read.values[entry.first_value + j];
      if (!is_program(plan, value.first_step, value.step_count)) return false;
    }
    for (uint32_t j = 0; j < entry.tensor_count; ++j) {
      const TensorPlanTensor& tensor = read.tensors[entry.first_tensor + j];
      bool is_fine = is_program(plan, tensor.first_step, tensor.step_count) &&
                     tensor.dim_count <= kTensorDims && tensor.element_bytes != 0 &&
                     tensor.element_bytes <= 8 && tensor.mantissa_bits < 64 &&
                     tensor.exponent_bits < 16;
      for (uint32_t k = 0; is_fine && k < tensor.dim_count; ++k) {
        is_fine = tensor.dims[k] < entry.value_count;
      }
      if (!is_fine) return false;
    }
  }
  return true;
}

// Returns null, or why the plan cannot be used.
const char* read_plan(const char* data, uint64_t bytes, ReadPlan* out) {
  const auto* const plan = reinterpret_cast<const TensorPlan*>(data);
  if (bytes < sizeof *plan || memcmp(plan->magic, kTensorPlanMagic, sizeof plan->magic) != 0) {
    return "it is no plan";
  }
  if (plan->version != kTensorsVersion) return "it is of another version of fibshim";
  const uint64_t wanted = sizeof *plan + uint64_t{plan->entry_count} * sizeof(TensorPlanEntry) +
                          uint64_t{plan->value_count} * sizeof(TensorPlanValue) +
                          uint64_t{plan->tensor_count} * sizeof(TensorPlanTensor) +
                          uint64_t{plan->step_count} * sizeof(Step);
  if (wanted != bytes || plan->count == 0 || plan->entry_count > kMostTensorEntries) {
    return "it is damaged";
  }
  out->plan = plan;
  out->entries = reinterpret_cast<const TensorPlanEntry*>(plan + 1);
  out->values = reinterpret_cast<const TensorPlanValue*>(out->entries + plan->entry_count);
  out->tensors = reinterpret_cast<const TensorPlanTensor*>(out->values + plan->value_count);
  out->steps = reinterpret_cast<const Step*>(out->tensors + plan->tensor_count);
  return is_sound(*out) ? nullptr : "it is damaged";
}

const char* make_file(const char* folder) {
  const char* reason = nullptr;
  const uint64_t start_time = process_start_time();
  const int file = create_process_file(folder, start_time, kTensorsSuffix, 0600, &g_file, &reason);
  if (file < 0) return reason;
  void* memory = MAP_FAILED;
  if (!is_within_file_limit(kHeaderBytes)) {
    reason = "the file would exceed RLIMIT_FSIZE";
  } else if (!reserve_file_range(file, 0, kHeaderBytes) ||
             (memory = mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) ==
                 MAP_FAILED) {
    reason = strerror(errno);
  }
  close(file);
  if (memory == MAP_FAILED) return reason;
  g_header = static_cast<TensorsHeader*>(memory);
  g_header->version = kTensorsVersion;
  g_header->header_bytes = kHeaderBytes;
  g_header->used_bytes = kHeaderBytes;
  g_header->pid = static_cast<uint64_t>(getpid());
  g_header->start_time = start_time;
  g_header->created_unix_ns = unix_time_ns();
  __atomic_thread_fence(__ATOMIC_RELEASE);
  memcpy(g_header->magic, kTensorsMagic, sizeof g_header->magic);
  return nullptr;
}

}  // namespace

ReadPlan open_tensors(const RecorderHost& host, const char* folder) {
  ReadPlan read;
  const char* reason = nullptr;
  const int below = open_process_folder(folder, &reason);
  if (below < 0) return {};
  const int file = openat(below, kTensorPlanFile, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  close(below);
  if (file < 0) return {};
  struct stat status;
  void* memory = MAP_FAILED;
  reason = fstat(file, &status) != 0 ? strerror(errno) : file_fault(status, is_ours(status.st_uid));
  if (reason == nullptr &&
      (status.st_size <= 0 || static_cast<uint64_t>(status.st_size) > kMostPlanBytes)) {
    reason = "it is damaged";
  }
  if (reason == nullptr) {
    const auto bytes = static_cast<uint64_t>(status.st_size);
    // Read a copy rather than map the file, which may be truncated meanwhile.
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pread(file, memory, bytes, 0) != status.st_size) {
      reason = strerror(errno);
    } else {
      reason = read_plan(static_cast<const char*>(memory), bytes, &read);
    }
  }
  close(file);
  if (reason == nullptr) reason = make_file(folder);
  if (reason != nullptr) {
    host.log(LogLevel::warn, "%s/%s: no tensors are kept: %s", folder, kTensorPlanFile, reason);
    return {};
  }
  host.log(
      LogLevel::warn,
      "%s of the tensors of launches are written into %s (fibshim record --tensors): they may be "
      "confidential",
      read.plan->keeps_statistics != 0 ? "statistics" : "values", folder);
  return read;
}

void count_kept() { __atomic_fetch_add(&g_header->kept, 1, __ATOMIC_RELAXED); }

void count_loss(TensorLoss loss) {
  __atomic_fetch_add(&g_header->losses[static_cast<uint32_t>(loss)], 1, __ATOMIC_RELAXED);
}

bool append_block(const Piece* pieces, uint32_t count) {
  uint64_t at = g_header->used_bytes;
  uint64_t end = at;
  for (uint32_t i = 0; i < count; ++i) end += pieces[i].bytes;
  const int file = is_within_file_limit(end) ? reopen_process_file(g_file) : -1;
  if (file < 0) return false;
  bool is_whole = true;
  for (uint32_t i = 0; i < count && is_whole; ++i) {
    const auto* data = static_cast<const char*>(pieces[i].data);
    for (uint64_t left = pieces[i].bytes; left != 0 && is_whole;) {
      const ssize_t written = pwrite(file, data, left, static_cast<off_t>(at));
      if (written < 0 && errno == EINTR) continue;
      is_whole = written > 0;
      if (!is_whole) break;
      data += written;
      at += static_cast<uint64_t>(written);
      left -= static_cast<uint64_t>(written);
    }
  }
  close(file);
  if (is_whole) __atomic_store_n(&g_header->used_bytes, end, __ATOMIC_RELEASE);
  return is_whole;
}

}  // namespace fibshim
