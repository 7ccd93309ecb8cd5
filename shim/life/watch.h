// What the watcher's thread knows: the folder that the process is in, the one that it is to be in, and what it says
// of both in the control block of its counters file. begin_watching() (swap.h) fills it before there is a thread;
// from then on only that thread writes it, holding the lock where a forked child would go on with it.
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

// A generation that is ready, and waits for its job's decision.
struct PreparedMove {
  bool exists;
  bool is_off;
  char wanted[PATH_MAX];
  Generation* next;  // null where nothing is to be done
  uint64_t until_ms;
  DecisionWord decision;
};

struct Watch {
  Mutex lock;
  char wanted[PATH_MAX];    // the folder to be in while the state is not off
  char folder[PATH_MAX];    // in force, links resolved; off: the one before; "": none yet
  char previous[PATH_MAX];  // in force before that; "": none
  uint64_t digest[2];
  bool is_off;
  FolderIdentity seen;  // where FIBSHIM_CONFIG led when it was last resolved
  uint64_t number;      // of the newest generation
  uint64_t swap_count;
  uint64_t refused_count;
  char refusal[kControlTextBytes];  // why the last folder was refused; "": it was not

  // State of this process; a forked child begins anew.
  ControlBlock* control;
  uint32_t seen_ask;
  uint64_t resolved_ms;  // when FIBSHIM_CONFIG was last resolved
  uint32_t refusals;     // of what it leads to, one after another
  uint64_t retry_at_ms;  // when to try that again; 0: not
  ImageTotals totals;
  PreparedMove prepared;
  MovedGraphs graphs;  // by the move that was asked for last
};
extern constinit Watch g_watch;

// Cut to fit.
template <size_t size>
void copy_text(char (&out)[size], const char* text) {
  const size_t length = strnlen(text, size - 1);
  memcpy(out, text, length);
  out[length] = 0;
}

uint64_t monotonic_ms();

// Not a private futex: other processes map the word's file, too.
void wait_on(const uint32_t* word, uint32_t seen, uint64_t timeout_ms);
void wake_all(const uint32_t* word);

// Publishes it to readers. Not holding the lock.
void write_status();

// Answers the request that was read last, and wakes the process that waits for the answer.
void write_answer(AnswerState state, const char* message);

// Counts a refused folder, logs why, and publishes it.
void record_refusal(const char* message);

}  // namespace fibshim
