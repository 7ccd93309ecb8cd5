// The watcher's state: the folder in force, the folder that is wanted, and the control block of the
// counters file where both are published. begin_watching() (swap.h) fills it before the thread
// exists. Afterwards only the watcher writes it, and holds the lock while it writes members that a
// forked child inherits.
#pragma once

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "shim/abi/control_format.h"
#include "shim/base/mutex.h"
#include "shim/graphs/graph_swap.h"
#include "shim/life/decision_word.h"
#include "shim/life/folder_identity.h"
#include "shim/registry/generation.h"
#include "shim/registry/loaded_images.h"

namespace fibshim {

// A prepared generation that waits for the job's decision.
struct PreparedMove {
  bool exists;
  bool is_off;
  char wanted[PATH_MAX];
  Generation* next;  // null: it is in force already
  uint64_t until_ms;
  DecisionWord decision;
};

struct Watch {
  Mutex lock;
  char wanted[PATH_MAX];    // the wanted folder, unless the state is off
  char folder[PATH_MAX];    // in force, links resolved; off: the one before off; "": none yet
  char previous[PATH_MAX];  // in force before `folder`; "": none
  uint64_t digest[2];
  bool is_off;
  FolderIdentity seen;  // of the folder to which FIBSHIM_CONFIG last led
  uint64_t number;      // of the newest generation
  uint64_t swap_count;
  uint64_t refused_count;
  char refusal[kControlTextBytes];  // why the last folder was refused; "": it was accepted

  // State of this process, which a forked child does not inherit.
  ControlBlock* control;
  uint32_t seen_ask;
  uint64_t resolved_ms;  // when FIBSHIM_CONFIG was last resolved
  uint32_t refusals;     // consecutive refusals of its folder
  uint64_t retry_at_ms;  // when to try that folder again; 0: never
  ImageTotals totals;
  PreparedMove prepared;
  MovedGraphs graphs;  // since the last move that was requested
};
extern constinit Watch g_watch;

// Copies a text, cut to fit.
template <size_t size>
void copy_text(char (&out)[size], const char* text) {
  const size_t length = strnlen(text, size - 1);
  memcpy(out, text, length);
  out[length] = 0;
}

uint64_t monotonic_ms();

// Futex calls, not private, since other processes map the word's file, too.
void wait_on(const uint32_t* word, uint32_t seen, uint64_t timeout_ms);
void wake_all(const uint32_t* word);

// Publishes the state in the control block. Takes the lock.
void write_status();

// Answers the last request, and wakes the process that waits for the answer.
void write_answer(AnswerState state, const char* message);

// Counts a refused folder, logs the reason, and publishes the state.
void record_refusal(const char* message);

}  // namespace fibshim
