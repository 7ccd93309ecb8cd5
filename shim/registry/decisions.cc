#include "shim/registry/decisions.h"

#include <stdio.h>
#include <string.h>

#include "shim/abi/program.h"
#include "shim/counters/counters.h"
#include "shim/launch/fast_form.h"
#include "shim/driver/driver.h"
#include "shim/registry/images.h"
#include "shim/launch/launch_slow.h"
#include "shim/base/log.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/launch/served_solutions.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

constexpr uint32_t kSmallestTable = 8;

Mutex g_lock;
Pool g_table_pool;
Pool g_decision_pool;
Decision* g_newest;  // of all cached decisions, linked by `older`

// Holding g_lock.
void put_in_list(Decision* decision) {
  decision->newer = nullptr;
  decision->older = g_newest;
  if (g_newest != nullptr) g_newest->newer = decision;
  g_newest = decision;
}

// Holding g_lock.
void take_from_list(Decision* decision) {
  (decision->newer == nullptr ? g_newest : decision->newer->older) = decision->older;
  if (decision->older != nullptr) decision->older->newer = decision->newer;
}

// Holding g_lock.
void make_slow_if_quarantined(Decision* decision) {
  if (decision->binding == nullptr || !is_quarantined(decision->series)) return;
  Way slow = Way::slow;
  __atomic_store(&decision->way, &slow, __ATOMIC_RELAXED);
}

size_t table_bytes(uint32_t capacity) {
  return sizeof(DecisionTable) + capacity * sizeof(DecisionTable::Slot);
}

void put(DecisionTable* table, const Decision* decision) {
  uint32_t at = hash_key(decision->key, decision->key_count);
  while (table->slots()[at & table->mask].load(std::memory_order_relaxed) != nullptr) ++at;
  table->slots()[at & table->mask].store(decision, std::memory_order_release);
  ++table->used;
}

// Holding g_lock. A table with room for one more; null: no memory.
DecisionTable* table_with_room(Candidate* candidate) {
  DecisionTable* old = candidate->decisions.load(std::memory_order_relaxed);
  if (old != nullptr && (old->used + 1) * 2 <= old->mask + 1) return old;
  const uint32_t capacity = old == nullptr ? kSmallestTable : (old->mask + 1) * 2;
  auto* table = static_cast<DecisionTable*>(g_table_pool.allocate(table_bytes(capacity)));
  if (table == nullptr) return nullptr;
  table->mask = capacity - 1;
  table->older = old;
  for (uint32_t i = 0; old != nullptr && i <= old->mask; ++i) {
    const Decision* decision = old->slots()[i].load(std::memory_order_relaxed);
    if (decision != nullptr) put(table, decision);
  }
  candidate->decisions.store(table, std::memory_order_release);
  return table;
}

// The cached copy, another thread's if it was faster, or `decision` itself when there is no memory.
const Decision* cache(Candidate* candidate, Decision* decision) {
  make_ready_for_fast_side(*candidate, decision);
  MutexGuard guard(g_lock);
  const Decision* found = find_decision(*candidate, decision->key, decision->key_count);
  if (found != nullptr) return found;
  DecisionTable* table = table_with_room(candidate);
  auto* copy = static_cast<Decision*>(g_decision_pool.allocate(sizeof(Decision)));
  if (table == nullptr || copy == nullptr) {
    g_decision_pool.release(copy, sizeof(Decision));
    return decision;
  }
  memcpy(static_cast<void*>(copy), static_cast<const void*>(decision), sizeof(Decision));
  make_slow_if_quarantined(copy);
  put_in_list(copy);
  put(table, copy);
  const Decision* none = &g_undecided;
  candidate->first.compare_exchange_strong(none, copy, std::memory_order_release,
                                           std::memory_order_relaxed);
  return copy;
}

// The definition's name: the pattern's template with this launch's values. False: too long.
bool format_name(const Record& record, const Candidate& candidate, const int64_t* key, char* out,
                 size_t out_size) {
  const Snapshot& snapshot = *candidate.snapshot;
  const NamePart* parts = snapshot.begin(candidate.pattern->name);
  size_t used = 0;
  for (uint32_t i = 0; i < candidate.pattern->name.count; ++i) {
    const NamePart& part = parts[i];
    int length = 0;
    char* at = out + used;
    const size_t room = out_size - used;
    switch (part.kind) {
      case NamePart::Kind::text: length = snprintf(at, room, "%s", snapshot.text(part.text)); break;
      case NamePart::Kind::key:
        length = snprintf(at, room, "%lld", static_cast<long long>(key[part.index]));
        break;
      case NamePart::Kind::capture: {
        const SymbolMatch::Capture& capture = candidate.match.captures[part.index];
        length = snprintf(at, room, "%.*s", capture.length, record.symbol + capture.begin);
        break;
      }
    }
    if (length < 0 || static_cast<size_t>(length) >= room) return false;
    used += static_cast<size_t>(length);
  }
  return true;
}

const Route* find_route(const Snapshot& snapshot, const Pattern& pattern, const char* name) {
  const Route* routes = snapshot.begin(pattern.routes);
  uint32_t low = 0;
  uint32_t high = pattern.routes.count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    const int order = strcmp(snapshot.text(routes[middle].definition), name);
    if (order == 0) return &routes[middle];
    if (order < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return nullptr;
}

bool binding_fits(const Snapshot& snapshot, const Binding& binding, const Param* params,
                  uint32_t count) {
  if (!program_fits(snapshot, binding.where, params, count)) return false;
  for (const GeometryMap& geometry : binding.geometry) {
    if (geometry.kind == GeometryMap::Kind::program &&
        !program_fits(snapshot, geometry.program, params, count)) {
      return false;
    }
  }
  const ArgumentMap* arguments = snapshot.begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    const bool fits = argument.kind == ArgumentMap::Kind::pass
                          ? argument.param < count &&
                                argument.offset + argument.size <= params[argument.param].size
                          : program_fits(snapshot, argument.program, params, count);
    if (!fits) return false;
  }
  return binding.arguments.count <= kMaxParams;
}

// Drivers from 12.3 on load modules while a stream captures; earlier ones spoil the capture.
bool can_load_in_capture() {
  int version = 0;
  const auto get_version = FIBSHIM_REAL(cuDriverGetVersion);
  return get_version != nullptr && get_version(&version) == CUDA_SUCCESS && version >= 12030;
}

// Failures that may pass: the next launch tries again. Others are as lasting as the file they lie
// in.
bool may_pass(CUresult error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_NOT_READY:
    case CUDA_ERROR_SYSTEM_NOT_READY: return true;
    default:
      return error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
             error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
}

// Of a handle whose launches need not be told apart by their devices.
int64_t device_of_all_launches(const Record& record, const LaunchRequest& request) {
  if (record.kind == HandleKind::function) return device_key_of_launch(request);
  const int32_t only = only_device_in_use();
  // Contexts may have been made in ways that nobody saw.
  const int64_t device = only >= 0 ? key_of_device(only) : device_key_of_launch(request);
  return counts_devices_apart() ? device : device_key(kNoDevice, class_of_key(device));
}

void take_replacement(const Replacement& replacement, Decision* out) {
  out->kernel = replacement.kernel;
  out->error = replacement.error;
  switch (replacement.state) {
    case LoadState::ready: out->kind = DecisionKind::ready; break;
    case LoadState::no_image: out->kind = DecisionKind::arch; break;
    case LoadState::not_yet: out->kind = DecisionKind::in_capture; break;
    case LoadState::failed: out->kind = DecisionKind::failed; break;
  }
}

}  // namespace

bool is_capturing(CUstream stream, bool is_per_thread_stream) {
  const auto ask = FIBSHIM_REAL(cuStreamIsCapturing);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (is_per_thread_stream && stream == nullptr) stream = CU_STREAM_PER_THREAD;
  return ask != nullptr && ask(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool program_fits(const Snapshot& snapshot, Program program, const Param* params, uint32_t count) {
  const Step* steps = snapshot.begin(program);
  for (uint32_t i = 0; i < program.count; ++i) {
    const Step& step = steps[i];
    if (step.op != Op::load_param && step.op != Op::require_aligned &&
        step.op != Op::require_equal) {
      continue;
    }
    const uint32_t size = step.op == Op::require_aligned ? 8 : size_of(step.type);
    if (step.index >= count || uint64_t{step.offset} + size > params[step.index].size) return false;
  }
  return true;
}

uint32_t unresolved_series(const Candidate& candidate) {
  return series_of(candidate.generation->config, candidate.snapshot->text(candidate.pattern->label),
                   "(unresolved)", kNoDevice);
}

// Its key may be a launch's, too; what it says is to take the slow side.
constinit const Decision g_undecided = [] {
  Decision undecided = {};
  undecided.way = Way::slow;
  return undecided;
}();

const Decision* decide(const Record& record, Candidate* candidate, const int64_t* key,
                       uint32_t count, const LaunchRequest& request, Decision* scratch) {
  const Snapshot& snapshot = *candidate->snapshot;
  Decision& decision = *scratch;
  memset(static_cast<void*>(&decision), 0, sizeof decision);
  decision.snapshot = &snapshot;
  decision.key_count = static_cast<uint8_t>(count);
  memcpy(decision.key, key, count * sizeof key[0]);
  decision.first_key = count == 0 ? 0 : key[0];
  const int64_t device =
      count > candidate->key_count ? key[count - 1] : device_of_all_launches(record, request);
  // For look-ups from when devices are told apart.
  decision.key[candidate->key_count] = device;

  char name[kMaxNameLength];
  if (!format_name(record, *candidate, key, name, sizeof name)) {
    decision.kind = DecisionKind::no_solution;
    decision.series = unresolved_series(*candidate);
    return cache(candidate, &decision);
  }
  decision.series =
      series_of(candidate->generation->config, snapshot.text(candidate->pattern->label), name,
                device_of_key(device));
  const Route* route = find_route(snapshot, *candidate->pattern, name);
  if (route == nullptr) {
    decision.kind = DecisionKind::no_solution;
    return cache(candidate, &decision);
  }
  const Binding& binding = snapshot.begin(snapshot.bindings)[route->binding];
  if (binding.state == BindingState::refused) {
    log_message(LogLevel::info, "%s: %s", name, snapshot.text(binding.reason));
    decision.kind = DecisionKind::refused;
    return cache(candidate, &decision);
  }
  if (binding.state == BindingState::ready &&
      !binding_fits(snapshot, binding, record.params, record.param_count)) {
    decision.kind = DecisionKind::refused;
    return cache(candidate, &decision);
  }
  decision.binding = &binding;
  decision.on_error = on_error_of(snapshot.begin(snapshot.solutions)[binding.solution].on_error);
  note_solution(decision.series, snapshot, binding);

  const uint32_t device_class = class_of_key(device);
  Replacement replacement = {LoadState::not_yet, CUDA_SUCCESS, nullptr};
  if (device_class < kMaxDeviceClasses) {
    replacement = find_replacement(*candidate->generation, binding, device_class);
    if (replacement.state == LoadState::not_yet &&
        (can_load_in_capture() || !is_capturing(request.stream, request.is_per_thread_stream))) {
      replacement = load_replacement(*candidate->generation, binding, device_class);
    }
  }
  take_replacement(replacement, &decision);
  const bool is_final = decision.kind == DecisionKind::failed
                            ? !may_pass(decision.error)
                            : decision.kind != DecisionKind::in_capture;
  return is_final ? cache(candidate, &decision) : &decision;
}

void release_decisions(Candidate* candidate) {
  MutexGuard guard(g_lock);
  DecisionTable* table = candidate->decisions.exchange(nullptr, std::memory_order_relaxed);
  for (uint32_t i = 0; table != nullptr && i <= table->mask; ++i) {
    auto* decision = const_cast<Decision*>(table->slots()[i].load(std::memory_order_relaxed));
    if (decision == nullptr) continue;
    take_from_list(decision);
    g_decision_pool.release(decision, sizeof(Decision));
  }
  while (table != nullptr) {
    DecisionTable* older = table->older;
    g_table_pool.release(table, table_bytes(table->mask + 1));
    table = older;
  }
}

void leave_fast_side_to_quarantined() {
  MutexGuard guard(g_lock);
  for (Decision* at = g_newest; at != nullptr; at = at->older) make_slow_if_quarantined(at);
}

void lock_decisions_for_fork() {
  g_lock.lock();
  g_table_pool.lock_for_fork();
  g_decision_pool.lock_for_fork();
}

void unlock_decisions_after_fork(bool is_child) {
  g_decision_pool.unlock_after_fork(is_child);
  g_table_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
