// The interface between libfibshim.so and libfibshadow.so: a table of functions in each direction.
//
// The shim opens the library if launches are to be checked. To check a launch, begin() reserves
// memory and copies into it what the launch writes. The shim launches the solution on the copies,
// then the original, and compare() launches a kernel that compares both. All of this goes into the
// launch's own stream. work() reads the result later and passes it to record_result. In a graph the
// same steps are nodes beside the original's, which each launch of the graph would run again, so
// such a check serves one launch. Both libraries come from one build; other pairs are refused.
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

inline constexpr uint32_t kShadowApiVersion = 3;
inline constexpr uint32_t kMaxShadowBlocks = 8;   // pieces of memory that one launch writes
inline constexpr uint32_t kMaxShadowOutputs = 8;  // tensors in them that are compared
inline constexpr uint32_t kMaxShadowAxes = 4;

// A range to copy from `address`. begin() fills in `copy`.
struct ShadowBlock {
  uint64_t address;
  uint64_t bytes;
  uint64_t copy;  // has the same offset from a multiple of kShadowAlignment as `address`
};
inline constexpr uint64_t kShadowAlignment = 256;

// Passed to the comparing kernel unchanged. Strides are in elements.
struct ShadowOutput {
  uint64_t found, expected;
  uint64_t count[kMaxShadowAxes], stride[kMaxShadowAxes];  // padded with 1 and 0
  double atol, rtol;
  ElementKind element;
  uint8_t reserved[7];
};

// The result of comparing one output.
struct ShadowTotals {
  uint64_t elements, wrong, not_finite;  // not_finite: differ, and not both are finite
  uint64_t nans, infinities;             // among the found elements
  double largest_difference, sum_of_differences;
  double worst;  // the largest deviation of an element, as a multiple of its tolerance
  double dot, found_square, expected_square;
};

struct ShadowCheck {
  CUstream_st* stream;  // never 0: a default stream is CU_STREAM_LEGACY or CU_STREAM_PER_THREAD
  uint32_t block_count;
  uint32_t output_count;
  ShadowBlock blocks[kMaxShadowBlocks];
  ShadowOutput outputs[kMaxShadowOutputs];
  // Set by the caller, passed on to record_result.
  uint32_t entry;
  MismatchAction action;
  double matched_ratio;
  // Set by begin() for compare().
  void* pool;
  uint32_t slot;
};

// A check of a node of a graph.
struct ShadowNodes {
  CUgraph_st* graph;
  CUgraphNode_st* const* before;  // the nodes that the node depends on
  size_t before_count;
  // Set by begin_in_graph().
  uint32_t number;  // for end_in_graph(); 0: no room is reserved
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
  // Returns the driver's own function, never a hook, or null if the driver does not have it.
  void* (*find_driver_function)(const char* name);
  void (*record_result)(const ShadowResult& result);
};

struct ShadowApi {
  // Called once, before all others. `host` must stay valid.
  void (*start)(const ShadowHost& host);
  // Allocates the current context's memory. May wait for the GPU. Not while a stream captures.
  void (*prepare)();
  // Reserves room for the blocks and copies them. Returns why there is no check, or `none`.
  // Allocates no GPU memory: if the context has none yet, work() allocates it.
  ShadowMiss (*begin)(ShadowCheck* check);
  // Compares, then frees the room in stream order. Without outputs it only frees the room.
  void (*compare)(ShadowCheck* check);
  // Does the same with nodes of a graph, in the current context, whose memory it may allocate.
  ShadowMiss (*begin_in_graph)(ShadowCheck* check, ShadowNodes* nodes);
  // Adds a comparison node that depends on `node`. Returns null if the driver refuses it.
  CUgraphNode_st* (*compare_in_graph)(const ShadowCheck& check, const ShadowNodes& nodes,
                                      CUgraphNode_st* node);
  // Called when the graph will not be launched again. Frees the room; if the graph was launched,
  // only once its result is there.
  void (*end_in_graph)(uint32_t number, bool was_launched);
  // Passes on the results. With `may_call_driver` it also allocates memory that is wanted. Returns
  // true if more results are to come.
  bool (*work)(bool may_call_driver);
  // A context (null: any) is about to end or has ended, and its memory with it. What was made there
  // is not used again.
  void (*drop_context)(CUctx_st* context);
  // The atfork handlers.
  void (*lock_for_fork)();
  void (*unlock_after_fork)(bool is_child);
};

}  // namespace fibshim

// The one symbol that libfibshadow.so exports. Returns nullptr for a version it does not speak.
extern "C" const fibshim::ShadowApi* fibshadow_api(uint32_t version);
