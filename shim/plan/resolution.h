// Finds what the folder has for a launch's key, and makes the decision that is cached for it.
//
// This is the part of a plan that is made once per key: the definition's name, its route, and the
// route's solutions in the order of trial. What each launch decides is in plan.h. Pure.
#pragma once

#include "shim/abi/snapshot.h"
#include "shim/registry/record.h"

namespace fibshim {

// Room for a decision that is not cached, and for all that it chooses among.
struct DecisionRoom {
  Decision decision;
  Choices choices;
  Decision chosen[kMaxChoices];
};

// Fills in the candidate for a pattern whose symbol and layout fit.
void fill_candidate(const Snapshot& snapshot, const SymbolMatch& match, Candidate* out);

// What the folder has for a key. A route to several solutions, or with a `when`, is a choice.
struct Resolution {
  DecisionKind kind;                // ready, choice, no_solution or refused
  const Binding* binding;           // null unless ready
  const char* reason;               // refused: why, if the folder gives a reason; else ""
  const Route* route;               // null: there is none
  char definition[kMaxNameLength];  // its name; "" if it is too long
};
void resolve(const Record& record, const Candidate& candidate, const int64_t* key, Resolution* out);

// Resolves solution `index` of a choice, in the order of trial, as ready or refused.
void resolve_choice(const Record& record, const Candidate& candidate, uint32_t index,
                    Resolution* out);

// Fills in the part of a decision that needs no driver. `kind` is the decision's final kind, which
// the caller finds by asking the driver.
void fill_decision(const Candidate& candidate, const Resolution& resolution, DecisionKind kind,
                   const int64_t* key, uint32_t key_count, Decision* out);
// Makes room->decision, a choice, choose among room->chosen.
void fill_choices(const Record& record, const Candidate& candidate, const Resolution& resolution,
                  DecisionRoom* room);

// Makes the decision for a key. `complete(resolution, out)` fills in one decision, including the
// part that needs the driver. For a choice it is called for each solution, then for itself.
template <class Complete>
void make_decision(const Record& record, const Candidate& candidate, const int64_t* key,
                   Resolution* resolution, DecisionRoom* room, const Complete& complete) {
  resolve(record, candidate, key, resolution);
  const bool is_choice = resolution->kind == DecisionKind::choice;
  const uint32_t count = is_choice ? resolution->route->count : 0;
  for (uint32_t i = 0; i < count; ++i) {
    resolve_choice(record, candidate, i, resolution);
    complete(*resolution, &room->chosen[i]);
  }
  if (is_choice) {
    resolution->kind = DecisionKind::choice;
    resolution->binding = nullptr;
    resolution->reason = "";
  }
  complete(*resolution, &room->decision);
  if (is_choice) fill_choices(record, candidate, *resolution, room);
}

// The same where no driver is asked and no decision kept: for programs that only say what the shim would do.
const Decision& plan_uncached(const Record& record, const Candidate& candidate, const int64_t* key,
                              Resolution* resolution, DecisionRoom* room);

}  // namespace fibshim
