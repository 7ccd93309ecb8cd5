#include "shim/launch/decide.h"

#include <string.h>

#include "shim/base/log.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters.h"
#include "shim/driver/context_scope.h"
#include "shim/driver/stream_context.h"
#include "shim/launch/served_solutions.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/shadow_rules.h"
#include "shim/launch/shapes.h"
#include "shim/registry/decisions.h"
#include "shim/registry/devices.h"
#include "shim/registry/generation.h"
#include "shim/registry/images.h"

namespace fibshim {
namespace {

// Drivers from 12.3 on can load modules while a stream captures; earlier ones invalidate the capture.
bool can_load_in_capture() {
  int version = 0;
  const auto get_version = FIBSHIM_REAL(cuDriverGetVersion);
  return get_version != nullptr && get_version(&version) == CUDA_SUCCESS && version >= 12030;
}

// True for failures that may be temporary, so that the next launch tries again. Others last as long
// as their file.
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

// Returns the device key for all launches of a handle whose launches are not told apart by device.
int64_t device_of_all_launches(const Record& record, const LaunchRequest& request) {
  if (record.kind == HandleKind::function) return device_key_of_launch(request);
  const int32_t only = only_device_in_use();
  // Contexts may have been made through functions that are not hooked.
  const int64_t device = only >= 0 ? key_of_device(only) : device_key_of_launch(request);
  return counts_devices_apart() ? device : device_key(kNoDevice, class_of_key(device));
}

DecisionKind kind_of(LoadState state) {
  switch (state) {
    case LoadState::ready: return DecisionKind::ready;
    case LoadState::no_image: return DecisionKind::arch;
    case LoadState::not_yet: return DecisionKind::in_capture;
    case LoadState::failed: return DecisionKind::failed;
  }
  return DecisionKind::failed;
}

// Returns the replacement's CUfunction in the context of the original CUfunction, as launching a
// CUkernel costs the driver more. Null: use the CUkernel.
CUfunction function_for(const Record& record, CUkernel kernel) {
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  CUfunction function = nullptr;
  if (record.kind != HandleKind::function || record.context == nullptr || get_function == nullptr) {
    return nullptr;
  }
  const ContextScope scope(record.context);
  return scope.is_current() && get_function(&function, kernel) == CUDA_SUCCESS ? function : nullptr;
}

Replacement find_or_load(const Candidate& candidate, const Binding& binding, int64_t device,
                         const LaunchRequest& request) {
  const uint32_t device_class = class_of_key(device);
  Replacement found = {LoadState::not_yet, CUDA_SUCCESS, nullptr};
  if (device_class >= kMaxDeviceClasses) return found;
  found = find_replacement(*candidate.generation, binding, device_class);
  if (found.state == LoadState::not_yet &&
      (can_load_in_capture() || !is_capturing(request.stream, request.is_per_thread_stream))) {
    found = load_replacement(*candidate.generation, binding, device_class);
  }
  return found;
}

}  // namespace

uint32_t unresolved_series(const Candidate& candidate) {
  return series_of(candidate.generation->config, candidate.snapshot->text(candidate.pattern->label),
                   "(unresolved)", "", kNoDevice);
}

int64_t device_key_of_launch(const LaunchRequest& request) {
  // A stream need not belong to the current context.
  const CUcontext context = context_of_stream(request.stream);
  const ContextScope scope(context);
  return scope.is_current() ? current_device_key() : key_of_device(kNoDevice);
}

namespace {

// Completes a decision with what needs the driver. False: it is valid only for this launch.
bool complete(const Record& record, const Candidate& candidate, const int64_t* key, uint32_t count,
              const LaunchRequest& request, const Resolution& resolution, Decision* out) {
  const Snapshot& snapshot = *candidate.snapshot;
  const uint32_t own = candidate.pattern->key.count;
  const int64_t device = key[own];
  Replacement replacement = {LoadState::not_yet, CUDA_SUCCESS, nullptr};
  DecisionKind kind = resolution.kind;
  if (kind == DecisionKind::ready) {
    replacement = find_or_load(candidate, *resolution.binding, device, request);
    kind = kind_of(replacement.state);
  } else if (resolution.reason[0] != 0) {
    log_message(LogLevel::info, "%s: %s", resolution.definition, resolution.reason);
  }
  fill_decision(candidate, resolution, kind, key, count, out);
  out->key[own] = device;  // for look-ups after devices are told apart
  const Solution* const solution =
      resolution.binding == nullptr
          ? nullptr
          : &snapshot.begin(snapshot.solutions)[resolution.binding->solution];
  out->series = resolution.definition[0] == 0
                    ? unresolved_series(candidate)
                    : series_of(candidate.generation->config,
                                snapshot.text(candidate.pattern->label), resolution.definition,
                                solution == nullptr ? "" : snapshot.text(solution->name),
                                device_of_key(device));
  out->counter = counter_of(out->series, outcome_of(kind));
  add_image(out->series, replacement.image);
  record_shape(*out, own);
  if (solution != nullptr) {
    out->on_error = on_error_of(solution->on_error, candidate.generation->on_error);
    record_solution(out->series, snapshot, *solution);
    out->is_quarantined = is_series_quarantined(out->series);
    if (out->is_quarantined != 0) out->way = Way::slow;
    if (kind == DecisionKind::ready && out->is_quarantined == 0) {
      begin_sampling(snapshot, *solution, out);
      if (out->sample_in != 0) prepare_shadow();
    }
  }
  if (kind == DecisionKind::ready) {
    out->node_kernel = replacement.kernel;
    out->kernel = function_for(record, replacement.kernel);
    if (out->kernel == nullptr) out->kernel = reinterpret_cast<CUfunction>(replacement.kernel);
  } else if (kind == DecisionKind::failed) {
    out->error = replacement.error;
  }
  return kind == DecisionKind::failed ? !may_pass(replacement.error)
                                      : kind != DecisionKind::in_capture;
}

// Returns false if the decision is valid only for this launch.
bool make(const Record& record, const Candidate& candidate, int64_t* key, uint32_t count,
          const LaunchRequest& request, Resolution* resolution, DecisionRoom* out) {
  const uint32_t own = candidate.pattern->key.count;
  if (count == own) key[own] = device_of_all_launches(record, request);
  bool lasts = true;
  make_decision(record, candidate, key, resolution, out,
                [&](const Resolution& one, Decision* decision) {
                  lasts = complete(record, candidate, key, count, request, one, decision) && lasts;
                });
  return lasts;
}

bool is_of_quarantined(const Decision& decision) {
  return decision.binding != nullptr && is_series_quarantined(decision.series);
}

}  // namespace

const Decision& decide(const Record& record, Candidate* candidate, int64_t* key, uint32_t count,
                       const LaunchRequest& request, DecisionRoom* scratch) {
  Resolution resolution;
  const uint32_t rules = shadow_rules_number();
  if (!make(record, *candidate, key, count, request, &resolution, scratch)) {
    return scratch->decision;
  }
  const Decision* const published = publish_decision(candidate, scratch->decision);
  // A quarantine may have begun, or `fibshim shadow` changed the rules, meanwhile.
  const bool is_choice = resolution.kind == DecisionKind::choice;
  bool is_quarantined = !is_choice && is_of_quarantined(scratch->decision);
  for (uint32_t i = 0; is_choice && i < resolution.route->count; ++i) {
    is_quarantined = is_quarantined || is_of_quarantined(scratch->chosen[i]);
  }
  if (is_quarantined) quarantine_decisions(is_series_quarantined);
  if (rules != shadow_rules_number()) apply_shadow_rules();
  return *published;
}

const Decision& decide_once(const Record& record, const Candidate& candidate, int64_t* key,
                            uint32_t count, const LaunchRequest& request, DecisionRoom* scratch) {
  Resolution resolution;
  (void)make(record, candidate, key, count, request, &resolution, scratch);
  return scratch->decision;
}

}  // namespace fibshim
