#include "shim/launch/rewrite_plan.h"

#include <string.h>

#include "shim/abi/program.h"
#include "shim/driver/context_scope.h"
#include "shim/driver/memory_range.h"
#include "shim/launch/decide.h"
#include "shim/launch/eager_plan.h"
#include "shim/launch/learn.h"
#include "shim/launch/shapes.h"
#include "shim/registry/devices.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

// Appends the member's arguments to the call's.
bool add_arguments(const MemberLaunch& member, uint32_t* used, RewriteCall* out) {
  const Record& record = *member.record;
  LaunchPlan room;
  LaunchRequest request;
  memset(static_cast<void*>(&request), 0, sizeof request);
  request.view.params = member.params.kernelParams;
  request.extra = member.params.kernelParams == nullptr ? member.params.extra : nullptr;
  if (*used + record.param_count > kMaxParams || !find_arguments(record, &request, &room)) {
    return false;
  }
  for (uint32_t i = 0; i < record.param_count; ++i) {
    out->params[*used] = request.view.params[i];
    out->layout[(*used)++] = record.params[i];
  }
  return true;
}

// Finds the end of a buffer. False: unknown.
bool find_end(const RewriteCall& call, const RewriteBuffer& buffer, uint64_t begin, uint64_t* end) {
  if (buffer.reaches_end != 0) {
    *end = find_end_of_memory(begin);
    return *end != 0;
  }
  const Snapshot& snapshot = *call.candidate.snapshot;
  int64_t bytes = 0;
  if (!run_program(snapshot.begin(buffer.bytes), buffer.bytes.count, call.request.view, &bytes) ||
      bytes < 0 || begin > UINT64_MAX - static_cast<uint64_t>(bytes)) {
    return false;
  }
  *end = begin + static_cast<uint64_t>(bytes);
  return true;
}

// Calls `use` in the context of the first kernel, where the rewrite is launched.
template <class Use>
auto in_context_of(const NodeParams& first, const Use& use) {
  if (first.ctx == nullptr) return use();
  const ContextScope scope(first.ctx);
  return use();
}

}  // namespace

const Record* find_member(const void* handle, const Generation& generation) {
  uintptr_t slot = find_handle(handle);
  if (slot == 0 || (slot & kUnmatched) != 0) slot = learn_stranger(handle);
  const Record* const record = slot == 0 ? nullptr : entry_of(slot)->record;
  const bool is_one =
      record != nullptr && record->member_count != 0 && record->generation == &generation;
  return is_one ? record : nullptr;
}

bool has_members(const void* handle) {
  const Generation* const generation = current_generation();
  return generation != nullptr && find_member(handle, *generation) != nullptr;
}

bool is_member(const Record& record, const Rewrite& rewrite, uint32_t member) {
  for (uint32_t i = 0; i < record.member_count; ++i) {
    if (record.members[i] == rewrite.first_member + member) return true;
  }
  return false;
}

bool read_call(const Generation& generation, const Rewrite& rewrite, const MemberLaunch* members,
               RewriteCall* out) {
  memset(static_cast<void*>(&out->record), 0, sizeof out->record);
  memset(static_cast<void*>(&out->candidate), 0, sizeof out->candidate);
  memset(static_cast<void*>(&out->request), 0, sizeof out->request);
  out->rewrite = &rewrite;
  out->first = members[0].params;
  uint32_t used = 0;
  for (uint32_t i = 0; i < rewrite.member_count; ++i) {
    if (used != rewrite.first_param[i] || !add_arguments(members[i], &used, out)) return false;
    read_geometry(members[i].params, members[i].cluster, out->geometry[i]);
    for (uint32_t k = 0; i != 0 && k < kGeometryCount; ++k) {
      if (used == kMaxParams) return false;
      out->params[used] = &out->geometry[i][k];
      out->layout[used++] = {0, sizeof out->geometry[i][k]};
    }
  }
  const Record& first = *members[0].record;
  out->record.kind = first.kind;
  out->record.context = first.context;
  out->record.entry = first.entry;
  out->record.symbol = first.symbol;
  out->record.has_params = true;
  out->record.param_count = static_cast<uint8_t>(used);
  out->record.params = out->layout;
  out->record.candidate_count = 1;
  out->record.candidates = &out->candidate;
  SymbolMatch match = {};
  match.pattern = rewrite.pattern;
  fill_candidate(*generation.snapshot, match, &out->candidate);
  out->candidate.record = &out->record;
  out->candidate.generation = &generation;
  out->request.handle = handle_of(members[0].params);
  out->request.view.params = out->params;
  out->request.view.captures = out->candidate.captures;
  memcpy(out->request.view.geometry, out->geometry[0], sizeof out->geometry[0]);
  int64_t key[kMaxKey];
  return compute_key(out->candidate, out->request.view, key) &&
         pattern_holds(out->candidate, out->request.view);
}

bool read_buffers(const RewriteCall& call, BufferRange* out, uint32_t* count) {
  const Snapshot& snapshot = *call.candidate.snapshot;
  const RewriteBuffer* const buffers = snapshot.begin(call.rewrite->buffers);
  *count = 0;
  for (uint32_t i = 0; i < call.rewrite->buffers.count; ++i) {
    const RewriteBuffer& buffer = buffers[i];
    uint64_t begin = 0;
    uint64_t end = 0;
    if (!read_pointer(snapshot, call.request.view, buffer.param, buffer.offset, buffer.shift,
                      &begin)) {
      return false;
    }
    if (begin == 0) continue;
    if (!find_end(call, buffer, begin, &end)) return false;
    if (end == begin) continue;
    out[(*count)++] = {begin,
                       end,
                       buffer.member,
                       buffer.is_written != 0,
                       buffer.is_dead != 0,
                       buffer.group,
                       buffer.is_written_first != 0};
  }
  return true;
}

bool holds_for_node(const LaunchPlan& plan, const NodeParams& params,
                    const uint32_t (&cluster)[3]) {
  if (plan.candidate == nullptr || plan.arguments == nullptr) return false;
  LaunchView view;
  view.params = plan.arguments;
  view.captures = plan.candidate->captures;
  read_geometry(params, cluster, view.geometry);
  return pattern_holds(*plan.candidate, view);
}

namespace {

bool is_known(const KnownDecision& known, const RewriteCall& call, const int64_t* key,
              uint32_t key_count) {
  return known.rewrite == call.rewrite && known.kind == call.record.kind &&
         known.context == call.record.context && known.key_count == key_count &&
         memcmp(known.key, key, key_count * sizeof *key) == 0;
}

}  // namespace

LaunchAction plan_rewrite(RewriteCall* call, NodePlan* plan, KnownDecision* known) {
  return in_context_of(call->first, [&] {
    const auto decide_now = [&](Candidate& candidate, int64_t* key) -> const Decision& {
      uint32_t count = candidate.pattern->key.count;
      if (call->record.kind == HandleKind::kernel && are_devices_told_apart()) {
        key[count++] = device_key_of_launch(call->request);
      }
      if (known == nullptr) {
        return decide_once(call->record, candidate, key, count, call->request,
                           &plan->launch.uncached);
      }
      if (is_known(*known, *call, key, count)) return known->room.decision;
      *known = {nullptr, call->record.kind, call->record.context, count, {}, {}};
      memcpy(known->key, key, count * sizeof *key);
      const Decision& made =
          decide_once(call->record, candidate, key, count, call->request, &known->room);
      if (made.kind == DecisionKind::ready) known->rewrite = call->rewrite;
      return made;
    };
    plan_launch(call->record, call->candidate.generation->mode, &call->request, &plan->launch,
                decide_now);
    plan->counter = counter_of_plan(plan->launch);
    if (plan->launch.action == LaunchAction::redirect) {
      fill_node(call->first, plan);
      record_shape_of_node(plan->launch, call->request.view);
    }
    return plan->launch.action;
  });
}

CounterIndex counter_of_rewrite(const RewriteCall& call, Outcome outcome) {
  int64_t key[kMaxKey];
  Resolution resolution;
  if (!compute_key(call.candidate, call.request.view, key)) return kNoCounter;
  resolve(call.record, call.candidate, key, &resolution);
  const uint32_t series =
      resolution.definition[0] == 0
          ? unresolved_series(call.candidate)
          : series_of(call.candidate.generation->config,
                      call.candidate.snapshot->text(call.candidate.pattern->label),
                      resolution.definition, "", kNoDevice);
  return counter_of(series, outcome);
}

}  // namespace fibshim
