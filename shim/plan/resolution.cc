#include "shim/plan/resolution.h"

#include <stdio.h>
#include <string.h>

#include "shim/plan/fit.h"

namespace fibshim {
namespace {

bool is_of_same_value(const FastRange& a, const FastRange& b) {
  return a.source == b.source && a.type == b.type && a.at == b.at && a.offset == b.offset;
}

// Writes the definition's name: the pattern's template with this launch's values. False: too long.
bool format_name(const Record& record, const Candidate& candidate, const int64_t* key,
                 char (&out)[kMaxNameLength]) {
  const Snapshot& snapshot = *candidate.snapshot;
  const NamePart* const parts = snapshot.begin(candidate.pattern->name);
  size_t used = 0;
  out[0] = 0;
  for (uint32_t i = 0; i < candidate.pattern->name.count; ++i) {
    const NamePart& part = parts[i];
    int length = 0;
    char* const at = out + used;
    const size_t room = sizeof out - used;
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
  const Route* const routes = snapshot.begin(pattern.routes);
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

}  // namespace

void fill_candidate(const Snapshot& snapshot, const SymbolMatch& match, Candidate* out) {
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[match.pattern];
  out->fast_key = pattern.fast_key;
  out->snapshot = &snapshot;
  out->pattern = &pattern;
  out->match = match;
  for (uint32_t i = 0; i < kMaxCaptures; ++i) out->captures[i] = match.captures[i].value;
}

void resolve(const Record& record, const Candidate& candidate, const int64_t* key,
             Resolution* out) {
  const Snapshot& snapshot = *candidate.snapshot;
  const Pattern& pattern = *candidate.pattern;
  out->kind = DecisionKind::no_solution;
  out->binding = nullptr;
  out->reason = "";
  out->route = nullptr;
  if (!format_name(record, candidate, key, out->definition)) {
    out->definition[0] = 0;
    return;
  }
  out->route = find_route(snapshot, pattern, out->definition);
  if (out->route == nullptr) return;
  const Binding& first = snapshot.begin(snapshot.bindings)[out->route->binding];
  if (out->route->count == 1 && first.when.count == 0) {
    resolve_choice(record, candidate, 0, out);
  } else {
    out->kind = DecisionKind::choice;
  }
}

void resolve_choice(const Record& record, const Candidate& candidate, uint32_t index,
                    Resolution* out) {
  const Snapshot& snapshot = *candidate.snapshot;
  const Binding& binding = snapshot.begin(snapshot.bindings)[out->route->binding + index];
  out->kind = DecisionKind::refused;
  out->binding = nullptr;
  out->reason = "";
  if (binding.state == BindingState::refused) {
    out->reason = snapshot.text(binding.reason);
    return;
  }
  if (!fits_program(snapshot, binding.when, record.params, record.param_count)) return;
  // A broken binding is an error, whatever it reads.
  if (binding.state == BindingState::ready &&
      !fits_binding(snapshot, binding, record.params, record.param_count)) {
    return;
  }
  out->kind = DecisionKind::ready;
  out->binding = &binding;
}

void fill_decision(const Candidate& candidate, const Resolution& resolution, DecisionKind kind,
                   const int64_t* key, uint32_t key_count, Decision* out) {
  memset(static_cast<void*>(out), 0, sizeof *out);
  out->snapshot = candidate.snapshot;
  out->binding = resolution.binding;
  out->kind = kind;
  out->first_key = key_count == 0 ? 0 : key[0];
  out->key_count = key_count;
  memcpy(out->key, key, key_count * sizeof key[0]);
  if (kind == DecisionKind::ready) {
    out->fast = resolution.binding->fast;
    out->way = plain_way(out->fast);
    return;
  }
  if (kind == DecisionKind::choice) {  // no checks: those of each choice include the pattern's
    out->way = Way::chosen;
    return;
  }
  const Pattern& pattern = *candidate.pattern;
  out->fast.checks = pattern.fast_checks;
  const bool is_original = keeps_original(kind) && pattern.has_whole_checks != 0;
  out->way = is_original ? Way::original : Way::slow;
}

void fill_choices(const Record& record, const Candidate& candidate, const Resolution& resolution,
                  DecisionRoom* room) {
  const Snapshot& snapshot = *candidate.snapshot;
  const Route& route = *resolution.route;
  Choices& choices = room->choices;
  choices.count = 0;
  choices.is_fast = true;
  choices.value = {};
  for (const bool serves : {true, false}) {
    for (uint32_t i = 0; i < route.count; ++i) {
      const Decision& decision = room->chosen[i];
      const bool is_other =
          decision.kind == DecisionKind::arch || decision.kind == DecisionKind::refused;
      if (is_other == serves) continue;
      const Binding& binding = snapshot.begin(snapshot.bindings)[route.binding + i];
      // A solution whose `when` cannot be computed was refused, for every launch.
      const bool is_for_all =
          binding.when.count == 0 ||
          !fits_program(snapshot, binding.when, record.params, record.param_count);
      Choices::Choice& choice = choices.list[choices.count++];
      choice = {INT64_MIN, UINT64_MAX, &decision, {}};
      if (is_for_all) continue;
      choice = {binding.range.low, binding.range.span, &decision, binding.when};
      if (choices.value.source == FastRange::Source::always) choices.value = binding.range;
      choices.is_fast = choices.is_fast && binding.range.source != FastRange::Source::computed &&
                        is_of_same_value(binding.range, choices.value);
    }
  }
  room->decision.choices = &choices;
}

const Decision& plan_uncached(const Record& record, const Candidate& candidate, const int64_t* key,
                              Resolution* resolution, DecisionRoom* room) {
  make_decision(record, candidate, key, resolution, room,
                [&](const Resolution& one, Decision* out) {
                  fill_decision(candidate, one, one.kind, key, candidate.pattern->key.count, out);
                });
  return room->decision;
}

}  // namespace fibshim
