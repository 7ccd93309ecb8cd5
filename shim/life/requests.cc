#include "shim/life/requests.h"

#include <stdio.h>
#include <string.h>

#include "shim/base/log.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/shadow_rules.h"
#include "shim/life/move.h"
#include "shim/life/watch.h"

namespace fibshim {
namespace {

constexpr uint32_t kMostHoldMs = 600'000;

// A copy of a request.
struct Request {
  AskTarget target;
  uint32_t hold_ms;
  uint32_t interval;
  uint64_t decision_id;
  char folder[kControlPathBytes];
  char decider[256];
};
constinit Request g_request = {};  // too large for a stack

// Copies the request. False: it is being replaced, and a new one follows soon.
bool copy_request(const ControlBlock& control, uint32_t word, Request* out) {
  out->target = control.asked_target;
  out->hold_ms = control.hold_ms;
  out->interval = control.asked_interval;
  out->decision_id = control.decision_id;
  memcpy(out->folder, control.asked_folder, sizeof out->folder);
  memcpy(out->decider, control.decider, sizeof out->decider);
  out->folder[sizeof out->folder - 1] = 0;
  out->decider[sizeof out->decider - 1] = 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&control.ask, __ATOMIC_RELAXED) == word;
}

void drop_prepared() {
  PreparedMove& prepared = g_watch.prepared;
  if (prepared.next != nullptr) end_generation(prepared.next);
  prepared.next = nullptr;
  prepared.exists = false;
  prepared.decision.close();
}

void finish_move(bool is_fine, const char* message) {
  if (!is_fine) record_refusal(message);
  write_answer(is_fine ? AnswerState::moved : AnswerState::refused, message);
}

void carry_out(Verdict verdict) {
  PreparedMove& prepared = g_watch.prepared;
  if (verdict == Verdict::undecided) return;
  if (verdict == Verdict::commit) {
    char message[kControlTextBytes] = "";
    Generation* const next = prepared.next;
    prepared.next = nullptr;
    finish_move(put_generation_in_force(next, prepared.is_off, prepared.wanted, message), message);
  } else {
    write_answer(AnswerState::aborted, "");
  }
  drop_prepared();
}

const char* folder_of(AskTarget target) {
  const Watch& watch = g_watch;
  switch (target) {
    case AskTarget::folder: return g_request.folder;
    case AskTarget::back: return watch.is_off ? watch.folder : watch.previous;
    default: return watch.wanted;
  }
}

// Prepares the move, which then waits for the decision. Returns false with a message if refused.
bool prepare_move(bool is_off, const char* wanted, Faults faults,
                  char (&message)[kControlTextBytes]) {
  PreparedMove& prepared = g_watch.prepared;
  if (const char* reason = prepared.decision.open(g_request.decider, g_request.decision_id)) {
    snprintf(message, sizeof message, "%s: cannot wait for the decision there: %s",
             g_request.decider, reason);
    return false;
  }
  prepared.next = prepare_generation(is_off, wanted, faults, message);
  if (prepared.next == nullptr && message[0] != 0) {
    prepared.decision.close();
    return false;
  }
  prepared.exists = true;
  prepared.is_off = is_off;
  copy_text(prepared.wanted, wanted);
  prepared.until_ms =
      monotonic_ms() + (g_request.hold_ms < kMostHoldMs ? g_request.hold_ms : kMostHoldMs);
  return true;
}

// Serves `fibshim shadow` and, if the request names no definition, `fibshim rollout --check`.
void follow_shadow_rule() {
  if (g_request.folder[0] == 0) {
    check_at_least(g_request.interval);
    follow_shadow_rules();
    return write_answer(AnswerState::moved, "");
  }
  if (add_shadow_rule(g_request.folder, g_request.interval)) {
    log_message(LogLevel::info, "FIBSHIM_SHADOW: %s%u of %s", g_request.interval == 0 ? "" : "1/",
                g_request.interval, g_request.folder);
    follow_shadow_rules();
    return write_answer(AnswerState::moved, "");
  }
  write_answer(AnswerState::refused, "too many definitions have a rate of their own");
}

}  // namespace

void serve_request(uint32_t word) {
  Watch& watch = g_watch;
  if (!copy_request(*watch.control, word, &g_request)) return;
  watch.seen_ask = word;
  const auto verb = control_state<AskVerb>(word);
  if (verb == AskVerb::shadow) return follow_shadow_rule();
  if (verb != AskVerb::move && verb != AskVerb::prepare) return;
  // A new request has come before the last one was decided.
  if (watch.prepared.exists) carry_out(watch.prepared.decision.abort());
  watch.graphs = {};
  write_answer(AnswerState::working, "");
  const bool is_off = g_request.target == AskTarget::off;
  const char* const wanted = folder_of(g_request.target);
  const Faults faults = g_request.target == AskTarget::folder ? Faults::refused : Faults::accepted;
  char message[kControlTextBytes] = "";
  if (!is_off && wanted[0] != '/')
    return finish_move(false, g_request.target == AskTarget::back ? "it has been in no other folder"
                                                                  : "no folder is asked for");
  if (verb == AskVerb::move) {
    finish_move(move_to(is_off, wanted, faults, message), message);
  } else if (prepare_move(is_off, wanted, faults, message)) {
    write_answer(AnswerState::prepared, "");
  } else {
    finish_move(false, message);
  }
}

void follow_decision() {
  PreparedMove& prepared = g_watch.prepared;
  if (!prepared.exists) return;
  const bool is_over = monotonic_ms() >= prepared.until_ms;
  carry_out(is_over ? prepared.decision.abort() : prepared.decision.verdict());
}

}  // namespace fibshim
