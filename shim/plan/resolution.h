// What the folder has for a key of a launch, and the decision that is remembered for it.
//
// The part of a plan that is made once for each key: the definition's name, its route, and the solutions of that,
// in the order in which launches try them. What each launch decides again is plan.h's. Pure, as plan.h is.
#pragma once

#include "shim/abi/snapshot.h"
#include "shim/registry/record.h"

namespace fibshim {

// Room for a decision that is not kept, and for all that it chooses among.
struct DecisionRoom {
  Decision decision;
  Choices choices;
  Decision chosen[kMaxChoices];
};

// A candidate for a pattern whose symbol and layout fit.
void fill_candidate(const Snapshot& snapshot, const SymbolMatch& match, Candidate* out);

// What the folder has for a key. A route to several solutions, or to one under a `when`, is a choice.
struct Resolution {
  DecisionKind kind;                // ready, choice, no_solution or refused
  const Binding* binding;           // null unless ready
  const char* reason;               // refused: why, where the folder says it; else ""
  const Route* route;               // null: there is none
  char definition[kMaxNameLength];  // its name; "" when it is too long
};
void resolve(const Record& record, const Candidate& candidate, const int64_t* key, Resolution* out);

// Of a choice: what the folder has in its place `index` of the order of trial. Ready or refused.
void resolve_choice(const Record& record, const Candidate& candidate, uint32_t index,
                    Resolution* out);

// The part of a decision that needs no driver: its kind is `kind`, once the driver has been asked.
void fill_decision(const Candidate& candidate, const Resolution& resolution, DecisionKind kind,
                   const int64_t* key, uint32_t key_count, Decision* out);
// Of a choice: makes room->decision choose among room->chosen.
void fill_choices(const Record& record, const Candidate& candidate, const Resolution& resolution,
                  DecisionRoom* room);

// The decision for a key. `complete(resolution, out)` fills in one decision, and adds what needs the driver; of a
// choice it is called for each solution, and then for the choice itself.
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

}  // namespace fibshim
