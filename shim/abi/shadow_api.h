// Between libfibshim.so and libfibshadow.so: a table of functions each way.
//
// The shim opens the library where launches are to be checked. A check of a launch: begin() takes room and copies into
// it what the launch writes; the shim launches the solution on the copies, and the original; compare() has a kernel
// compare both. What it finds is read later, by work(), and handed to RecordResult. All of that goes into the launch's
// own stream. In a graph the same are nodes beside that of the original, which every launch of it runs again: its check is
// for one launch. Both libraries come from one build: the version refuses a pair that does not.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/element.h"
#include "shim/abi/settings.h"

struct CUstream_st;
struct CUctx_st;
struct CUgraph_st;
struct CUgraphNode_st;

namespace fibshim {

inline constexpr uint32_t kShadowApiVersion = 2;
inline constexpr uint32_t kMaxShadowBlocks = 8;   // pieces of memory that one launch writes
inline constexpr uint32_t kMaxShadowOutputs = 8;  // tensors in them that are compared
inline constexpr uint32_t kMaxShadowAxes = 4;

// A range to copy, from `address`; begin() fills in `copy`.
struct ShadowBlock {
  uint64_t address;
  uint64_t bytes;
  uint64_t copy;  // as far behind a multiple of kShadowAlignment as `address` is
};
inline constexpr uint64_t kShadowAlignment = 256;

// Handed to the kernel as it is. Strides are in elements.
struct ShadowOutput {
  uint64_t found, expected;
  uint64_t count[kMaxShadowAxes], stride[kMaxShadowAxes];  // filled up with 1 and 0
  double atol, rtol;
  ElementKind element;
  uint8_t reserved[7];
};

// The result of comparing one output.
struct ShadowTotals {
  uint64_t elements, wrong, not_finite;  // not_finite: where they should be, or the reverse
  uint64_t nans, infinities;             // of those found
  double largest_difference, sum_of_differences;
  double worst;  // of all elements, how far off, as a share of what it may be
  double dot, found_square, expected_square;
};

struct ShadowCheck {
  CUstream_st* stream;  // never 0: the default streams by their names
  uint32_t block_count;
  uint32_t output_count;
  ShadowBlock blocks[kMaxShadowBlocks];
  ShadowOutput outputs[kMaxShadowOutputs];
  // The caller's, handed to record_result.
  uint32_t entry;
  MismatchAction action;  // what a mismatch does
  double matched_ratio;
  // Left by begin() for compare().
  void* pool;
  uint32_t slot;
};

// A check of a node of a graph.
struct ShadowNodes {
  CUgraph_st* graph;
  CUgraphNode_st* const* before;  // what the node waits for
  size_t before_count;
  // Left by begin_in_graph().
  uint32_t number;  // for end_in_graph(); 0: it has taken no room
  uint32_t copy_count;
  CUgraphNode_st* copies[kMaxShadowBlocks];
};

struct ShadowResult {
  uint32_t entry;
  MismatchAction action;
  double matched_ratio;
  uint32_t output_count;
  ElementKind elements[kMaxShadowOutputs];
  ShadowTotals totals[kMaxShadowOutputs];
};

// Functions of the shim that the library calls. Any thread may call these.
struct ShadowHost {
  uint64_t memory_bytes;  // of each context
  void (*log)(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
  // The driver's own function, never a hook. Null: the driver does not have it.
  void* (*find_driver_function)(const char* name);
  void (*record_result)(const ShadowResult& result);
};

struct ShadowApi {
  // Before anything else, once. `host` must stay valid.
  void (*start)(const ShadowHost& host);
  // Makes the current context's memory ready. May wait for the GPU; not while a stream captures.
  void (*prepare)();
  // Takes room for the blocks, and copies. Not `none`: why there is no check. No memory is taken here: where the
  // context has none yet, work() makes it.
  ShadowMiss (*begin)(ShadowCheck* check);
  // Compares, and gives the room back behind that. Without outputs: only gives it back.
  void (*compare)(ShadowCheck* check);
  // Does the same by nodes of a graph, in the current context, whose memory it may allocate. A
  // check in a graph is for one launch.
  ShadowMiss (*begin_in_graph)(ShadowCheck* check, ShadowNodes* nodes);
  // Adds the comparison, behind `node`. Null: the driver refuses.
  CUgraphNode_st* (*compare_in_graph)(const ShadowCheck& check, const ShadowNodes& nodes,
                                      CUgraphNode_st* node);
  // The graph is not launched any more: gives the room back, of one that was launched once its answer is there.
  void (*end_in_graph)(uint32_t number, bool was_launched);
  // Hands on what has been found. `may_call_driver`: makes memory that is wanted, too. True: more is to come.
  bool (*work)(bool may_call_driver);
  // A context, or all of a device, is about to end or has ended: what was made there is not used any more.
  // Device -1: on any.
  void (*drop_context)(CUctx_st* context);
  void (*drop_device)(int32_t device);
  // The atfork handlers.
  void (*lock_for_fork)();
  void (*unlock_after_fork)(bool is_child);
};

}  // namespace fibshim

// The one symbol that libfibshadow.so exports. Returns nullptr for a version it does not speak.
extern "C" const fibshim::ShadowApi* fibshadow_api(uint32_t version);
