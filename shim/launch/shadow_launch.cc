#include "shim/launch/shadow_launch.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/shadow_counts.h"
#include "shim/driver/context_scope.h"
#include "shim/driver/driver.h"
#include "shim/driver/stream_context.h"
#include "shim/launch/captures.h"
#include "shim/launch/served_solutions.h"
#include "shim/abi/program.h"

namespace fibshim {
namespace {

std::atomic<const ShadowApi*> g_api{nullptr};
ShadowHost g_host;
bool g_is_locked_for_fork;  // as in recording.cc

const ShadowApi* api() { return g_api.load(std::memory_order_acquire); }

bool run(const Snapshot& snapshot, Program program, const LaunchView& view, int64_t* out) {
  return run_program(snapshot.begin(program), program.count, view, out);
}

// Writes the values of the definition's variable axes, as "batch_size=7, heads=8".
void write_shape(const Decision& decision, const LaunchView& view, char* out, size_t out_size) {
  const Snapshot& snapshot = *decision.snapshot;
  const NamedAxis* const axes = snapshot.begin(decision.binding->axes);
  size_t used = 0;
  out[0] = 0;
  for (uint32_t i = 0; i < decision.binding->axes.count && used < out_size; ++i) {
    int64_t value = 0;
    if (!run(snapshot, axes[i].value, view, &value)) continue;
    used += static_cast<size_t>(snprintf(out + used, out_size - used, "%s%s=%lld",
                                         used == 0 ? "" : ", ", snapshot.text(axes[i].name),
                                         static_cast<long long>(value)));
  }
}

// Computes the extent of a tensor. False: it cannot be computed.
bool measure(const Snapshot& snapshot, const TensorUse& use, const LaunchView& view,
             uint64_t* count, uint64_t* stride, uint64_t* bytes) {
  const TensorAxis* const axes = snapshot.begin(use.axes);
  const uint64_t element_bytes = kElements[static_cast<uint32_t>(use.element)].bytes;
  uint64_t last = 0;
  bool is_empty = false;
  for (uint32_t i = 0; i < kMaxShadowAxes; ++i) {
    int64_t length = 1;
    int64_t step = 0;
    if (i < use.axes.count && (!run(snapshot, axes[i].count, view, &length) ||
                               !run(snapshot, axes[i].stride, view, &step))) {
      return false;
    }
    if (length < 0 || step < 0 || length > INT32_MAX) return false;
    count[i] = static_cast<uint64_t>(length);
    stride[i] = static_cast<uint64_t>(step);
    is_empty = is_empty || length == 0;
    uint64_t reach = 0;
    if (length > 1 && (__builtin_mul_overflow(count[i] - 1, stride[i], &reach) ||
                       __builtin_add_overflow(last, reach, &last))) {
      return false;
    }
  }
  *bytes = 0;
  return is_empty || !__builtin_mul_overflow(last + 1, element_bytes, bytes);
}

bool overlap(const ShadowBlock& block, uint64_t address, uint64_t bytes) {
  return address < block.address + block.bytes && block.address < address + bytes;
}

bool is_within(const ShadowBlock& block, uint64_t address) {
  return address >= block.address && address - block.address < block.bytes;
}

// Adds the range from `address`, merged with the blocks that it overlaps. False: no room for
// another block.
bool add_block(ShadowCheck* check, uint64_t address, uint64_t bytes) {
  ShadowBlock added = {address, bytes, 0};
  for (uint32_t i = 0; i < check->block_count;) {
    const ShadowBlock block = check->blocks[i];
    if (!overlap(block, added.address, added.bytes)) {
      ++i;
      continue;
    }
    const uint64_t end = block.address + block.bytes > added.address + added.bytes
                             ? block.address + block.bytes
                             : added.address + added.bytes;
    added.address = block.address < added.address ? block.address : added.address;
    added.bytes = end - added.address;
    check->blocks[i] = check->blocks[--check->block_count];
    i = 0;
  }
  if (check->block_count == kMaxShadowBlocks) return false;
  check->blocks[check->block_count++] = added;
  return true;
}

bool points_elsewhere(const ShadowTotals& totals, double matched_ratio) {
  if (totals.expected_square == 0) return false;
  const double least = kLeastCosine * matched_ratio;
  return totals.found_square == 0 || totals.dot < 0 ||
         totals.dot / totals.found_square * (totals.dot / totals.expected_square) < least * least;
}

// True if the output is wrong by the judge's rule.
bool is_wrong(const ShadowTotals& totals, ElementKind element, double matched_ratio) {
  if (totals.elements == 0) return false;
  const double wrong = static_cast<double>(totals.wrong) / static_cast<double>(totals.elements);
  const bool is_floating = kElements[static_cast<uint32_t>(element)].is_floating;
  return totals.not_finite != 0 || 1 - wrong < matched_ratio ||
         (is_floating && points_elsewhere(totals, matched_ratio));
}

double larger(double a, double b) { return a > b ? a : b; }

void report_mismatch(uint32_t entry, const ShadowFinding& finding, bool is_quarantined) {
  static std::atomic<uint64_t> was_reported[kSeriesCapacity / 64];
  const uint32_t series = series_of_shadow_entry(entry);
  const uint64_t bit = uint64_t{1} << series % 64;
  const bool is_known =
      (was_reported[series / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0;
  if (is_known && !is_quarantined) return;
  const auto [pattern, definition] = names_of_series(series);
  log_message(
      LogLevel::warn,
      "%s (pattern %s), %s: solution %s differs from the original: %llu of %llu elements are "
      "wrong, the "
      "largest difference is %.6g%s; %s",
      definition, pattern, shape_of_shadow_entry(entry), solution_of_series(series),
      static_cast<unsigned long long>(finding.wrong_elements),
      static_cast<unsigned long long>(finding.elements), finding.largest_difference,
      finding.nans + finding.infinities == 0 ? "" : ", and some are not finite",
      is_quarantined
          ? "it is left alone: the original runs until the folder is swapped or the process starts "
            "again"
          : "FIBSHIM_ON_MISMATCH=quarantine would leave it alone");
}

void record_result(const ShadowResult& result) {
  ShadowFinding finding = {};
  for (uint32_t i = 0; i < result.output_count; ++i) {
    const ShadowTotals& totals = result.totals[i];
    finding.is_mismatch =
        finding.is_mismatch || is_wrong(totals, result.elements[i], result.matched_ratio);
    finding.elements += totals.elements;
    finding.wrong_elements += totals.wrong;
    finding.nans += totals.nans;
    finding.infinities += totals.infinities;
    finding.largest_difference = larger(finding.largest_difference, totals.largest_difference);
    finding.worst = larger(finding.worst, totals.worst);
    if (totals.elements != 0) {
      finding.mean_difference =
          larger(finding.mean_difference,
                 totals.sum_of_differences / static_cast<double>(totals.elements));
    }
  }
  count_shadow_check(result.entry, finding);
  if (!finding.is_mismatch) return;
  const MismatchAction action = result.action;
  const bool is_quarantined = action != MismatchAction::warn &&
                              quarantine_solution(series_of_shadow_entry(result.entry),
                                                  action == MismatchAction::quarantine_job);
  report_mismatch(result.entry, finding, is_quarantined);
}

}  // namespace

void start_shadow(const ShadowApi& shadow) {
  g_host = {shadow_memory(), log_message, find_driver_function, record_result};
  shadow.start(g_host);
  g_api.store(&shadow, std::memory_order_release);
}

bool has_shadow() { return api() != nullptr; }

void prepare_shadow() {
  if (api() == nullptr || g_active_captures.load(std::memory_order_relaxed) != 0) return;
  api()->prepare();
}

ShadowLaunch::ShadowLaunch(const LaunchRequest& request, const LaunchPlan& plan, ShadowNodes* nodes)
    : nodes_(nodes) {
  check_.block_count = 0;
  check_.output_count = 0;
  const Decision& decision = *plan.decision;
  LaunchRequest seen = request;
  seen.view.params = plan.arguments;
  seen.view.captures = plan.candidate->captures;
  char shape[sizeof ShadowEntry::shape];
  write_shape(decision, seen.view, shape, sizeof shape);
  check_.entry = find_shadow_entry(decision.series, shape);
  begin(seen, plan);
  // A check in a graph is tried again when there is room, so it is not counted as missed yet.
  const bool is_tried_again = nodes_ != nullptr && miss_ == ShadowMiss::busy;
  if (miss_ != ShadowMiss::none && !is_tried_again) count_shadow_miss(check_.entry, miss_);
}

void ShadowLaunch::begin(const LaunchRequest& request, const LaunchPlan& plan) {
  const Solution& solution = solution_of(*plan.decision);
  check_.matched_ratio = solution.matched_ratio;
  check_.action = on_mismatch_of(solution.on_mismatch);
  check_.stream = named_stream(request.stream, request.is_per_thread_stream);
  miss_ = find_blocks(plan, request.view);
  if (miss_ != ShadowMiss::none) return;
  if (nodes_ == nullptr && g_active_captures.load(std::memory_order_relaxed) != 0) {
    miss_ = ShadowMiss::capture;
    return;
  }
  if (api() == nullptr) {
    miss_ = ShadowMiss::memory;
    return;
  }
  check_.pool = nullptr;
  miss_ = nodes_ == nullptr ? begin_in_stream() : api()->begin_in_graph(&check_, nodes_);
  has_room_ = nodes_ == nullptr && check_.pool != nullptr;
  if (miss_ == ShadowMiss::none) miss_ = redirect_to_copies(request, plan);
}

// A CUkernel runs in the context of the stream, whichever is current. So must the copies be there.
ShadowMiss ShadowLaunch::begin_in_stream() {
  const ContextScope scope(context_of_stream(check_.stream));
  return scope.is_current() ? api()->begin(&check_) : ShadowMiss::memory;
}

ShadowMiss ShadowLaunch::find_blocks(const LaunchPlan& plan, const LaunchView& view) {
  const Binding& binding = *plan.decision->binding;
  const Snapshot& snapshot = *plan.decision->snapshot;
  const TensorUse* const uses = snapshot.begin(binding.tensors);
  for (uint32_t i = 0; i < binding.tensors.count; ++i) {
    Tensor tensor;
    tensor.use = &uses[i];
    tensor.bytes = 0;
    if (!read_pointer(snapshot, view, uses[i].param, uses[i].offset, {}, &tensor.pointer) ||
        !read_pointer(snapshot, view, uses[i].param, uses[i].offset, uses[i].shift,
                      &tensor.address)) {
      return ShadowMiss::extent;
    }
    if (tensor.address == 0) continue;
    const bool is_known = uses[i].has_extent != 0 && measure(snapshot, uses[i], view, tensor.count,
                                                             tensor.stride, &tensor.bytes);
    const uint64_t element_bytes = kElements[static_cast<uint32_t>(uses[i].element)].bytes;
    uint64_t end;
    if (uses[i].is_written != 0 && (!is_known || tensor.address % element_bytes != 0 ||
                                    __builtin_add_overflow(tensor.address, tensor.bytes, &end))) {
      return ShadowMiss::extent;
    }
    if (uses[i].is_written != 0 && tensor.bytes != 0 &&
        !add_block(&check_, tensor.address, tensor.bytes)) {
      return ShadowMiss::extent;
    }
    tensors_[tensor_count_++] = tensor;
  }
  if (check_.block_count == 0 || !has_compared()) return ShadowMiss::extent;
  // Extend the blocks to tensors that overlap a written one: the copies must hold all that is read
  // of them.
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& tensor = tensors_[i];
    for (uint32_t k = 0; k < check_.block_count; ++k) {
      const ShadowBlock block = check_.blocks[k];
      if (tensor.bytes == 0 && is_within(block, tensor.address)) return ShadowMiss::extent;
      const bool reaches_beyond = tensor.address < block.address ||
                                  tensor.address + tensor.bytes > block.address + block.bytes;
      if (!overlap(block, tensor.address, tensor.bytes) || !reaches_beyond) continue;
      if (!add_block(&check_, tensor.address, tensor.bytes)) return ShadowMiss::extent;
      i = UINT32_MAX;  // start again from the first tensor, since the blocks have grown
      break;
    }
  }
  return can_all_move() ? ShadowMiss::none : ShadowMiss::extent;
}

// True if the tensors to which one pointer leads, by several shifts, are in one block or in none:
// there is one pointer to the copies, too.
bool ShadowLaunch::can_all_move() const {
  const auto block_of = [&](const Tensor& tensor) {
    uint32_t block = 0;
    while (block < check_.block_count && !is_within(check_.blocks[block], tensor.address)) ++block;
    return block;
  };
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    for (uint32_t k = 0; k < i; ++k) {
      const TensorUse& use = *tensors_[i].use;
      const TensorUse& other = *tensors_[k].use;
      const bool is_one_pointer = use.param == other.param && use.offset == other.offset;
      if (is_one_pointer && block_of(tensors_[i]) != block_of(tensors_[k])) return false;
    }
  }
  return true;
}

// True if the original writes the tensor, and it overlaps no tensor whose content may vary.
bool ShadowLaunch::is_compared(const Tensor& tensor) const {
  if (tensor.use->is_written == 0) return false;
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& other = tensors_[i];
    if (other.use->may_vary != 0 && tensor.address < other.address + other.bytes &&
        other.address < tensor.address + tensor.bytes) {
      return false;
    }
  }
  return true;
}

bool ShadowLaunch::has_compared() const {
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    if (tensors_[i].bytes != 0 && is_compared(tensors_[i])) return true;
  }
  return false;
}

// Plans the same launch with pointers to the copies in place of pointers to the copied memory.
ShadowMiss ShadowLaunch::redirect_to_copies(const LaunchRequest& request, const LaunchPlan& plan) {
  const Record& record = *plan.record;
  const Solution& solution = solution_of(*plan.decision);
  memcpy(params_, request.view.params, record.param_count * sizeof params_[0]);
  for (uint32_t i = 0; i < tensor_count_; ++i) {
    const Tensor& tensor = tensors_[i];
    const TensorUse& use = *tensor.use;
    for (uint32_t k = 0; k < check_.block_count; ++k) {
      const ShadowBlock& block = check_.blocks[k];
      if (tensor.bytes == 0 || !is_within(block, tensor.address)) continue;
      const uint64_t copy = block.copy + (tensor.address - block.address);
      if (params_[use.param] == request.view.params[use.param]) {
        const uint32_t bytes = record.params[use.param].size;
        const uint32_t at = (patched_bytes_ + 15) / 16 * 16;
        if (bytes > sizeof patched_ || at > sizeof patched_ - bytes) return ShadowMiss::extent;
        memcpy(patched_ + at, request.view.params[use.param], bytes);
        params_[use.param] = patched_ + at;
        patched_bytes_ = at + bytes;
      }
      const uint64_t pointer = copy - (tensor.address - tensor.pointer);
      memcpy(static_cast<char*>(params_[use.param]) + use.offset, &pointer, sizeof pointer);
      if (!is_compared(tensor)) continue;
      if (check_.output_count == kMaxShadowOutputs) return ShadowMiss::extent;
      ShadowOutput& output = check_.outputs[check_.output_count++];
      output.found = copy;
      output.expected = tensor.address;
      memcpy(output.count, tensor.count, sizeof output.count);
      memcpy(output.stride, tensor.stride, sizeof output.stride);
      output.element = use.element;
      const double tolerance = kElements[static_cast<uint32_t>(use.element)].tolerance;
      output.atol = solution.atol < 0 ? tolerance : solution.atol;
      output.rtol = solution.rtol < 0 ? tolerance : solution.rtol;
    }
  }
  LaunchRequest copied = request;
  copied.view.params = params_;
  plan_decided(*plan.candidate, *plan.decision, Mode::apply, copied, &plan_);
  return plan_.action == LaunchAction::redirect ? ShadowMiss::none : ShadowMiss::launch;
}

void ShadowLaunch::give_up(CUresult result) {
  miss_ = ShadowMiss::launch;
  count_shadow_miss(check_.entry, miss_);
  record_failure(series_of_shadow_entry(check_.entry), result);
}

void ShadowLaunch::compare(bool has_original) {
  if (!has_room_) return;
  if (miss_ != ShadowMiss::none || !has_original) check_.output_count = 0;
  api()->compare(&check_);
}

CUgraphNode ShadowLaunch::compare_in_graph(CUgraphNode node) const {
  return api()->compare_in_graph(check_, *nodes_, node);
}

void count_unchecked_graph(uint32_t series, bool lacks_room) {
  count_shadow_miss(find_shadow_entry(series, "(graph)"),
                    api() == nullptr || lacks_room ? ShadowMiss::memory : ShadowMiss::busy);
}

void end_check_in_graph(uint32_t number, bool was_launched) {
  if (api() != nullptr) api()->end_in_graph(number, was_launched);
}

bool work_on_shadow(bool may_call_driver) {
  return api() != nullptr && api()->work(may_call_driver);
}

void drop_shadow_of_context(CUcontext context) {
  if (api() != nullptr) api()->drop_context(context);
}

void lock_shadow_for_fork() {
  g_is_locked_for_fork = api() != nullptr;
  if (g_is_locked_for_fork) api()->lock_for_fork();
}

void unlock_shadow_after_fork(bool is_child) {
  if (g_is_locked_for_fork) api()->unlock_after_fork(is_child);
}

}  // namespace fibshim
