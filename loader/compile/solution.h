// A solution: a FlashInfer Trace Solution plus our `launch` block (tools/doc/contract.md,
// "Solution") and, for the judge, an optional `verify` block, of which only the arguments and
// tolerances are read here (tools/lint/verify_block.h reads the rest).
//
// The upstream parts of the record are read leniently, `launch` strictly. The folder's checks read
// the solution's images later.
#pragma once

#include "loader/read/cubin.h"
#include "loader/compile/marked_expression.h"
#include "loader/read/sha256.h"

namespace fibshim {

struct SolutionImage {
  MarkedText path;       // as written: relative to the solution's file
  std::string relative;  // below the folder's root
  Sha256 hash;
  Mark hash_mark;
  ImageKind kind;
  uint16_t sm = 0;  // from the image itself
  ArchScope scope = ArchScope::portable;
};

// The largest values that CUDA accepts on any GPU.
// Dynamic shared memory of one block is 227 KB on sm_90 and later.
inline constexpr int64_t kMaxSharedMemBytes = 232448;
inline constexpr int64_t kMaxBlockThreads = 1024;
inline constexpr int64_t kMaxClusterBlocks = 16;

struct GeometryInfo {
  const char* key;   // in `launch`
  const char* name;  // in messages
  int64_t lowest, highest;
  int64_t default_value;
};
// Indexed by GeometryIndex.
inline constexpr GeometryInfo kGeometry[kGeometryCount] = {
    {"grid", "grid x", 1, INT32_MAX, 1},
    {"grid", "grid y", 1, 65535, 1},
    {"grid", "grid z", 1, 65535, 1},
    {"block", "block x", 1, kMaxBlockThreads, 1},
    {"block", "block y", 1, kMaxBlockThreads, 1},
    {"block", "block z", 1, 64, 1},
    {"cluster", "cluster x", 1, kMaxClusterBlocks, 1},
    {"cluster", "cluster y", 1, kMaxClusterBlocks, 1},
    {"cluster", "cluster z", 1, kMaxClusterBlocks, 1},
    {"shared_mem", "shared memory", 0, kMaxSharedMemBytes, 0},
};

// An argument that no pattern supplies: 1 if the next node of a graph may begin before this
// kernel's wait, else 0.
inline constexpr std::string_view kNextMayBegin = "next_may_begin";
// An argument that no pattern supplies if the launch block asks for a workspace: its address.
inline constexpr std::string_view kWorkspace = "workspace";

struct SolutionSpec {
  uint16_t folder = 0;                // index into FolderModel::folders
  uint32_t share = 0;                 // its folder's share of the launches; 0: all
  const std::string* file = nullptr;  // as in Marks
  std::string relative;               // below the folder's root
  MarkedName name;
  MarkedName definition;
  std::string author;
  Mark launch_mark;
  MarkedName kernel;
  std::vector<SolutionImage> images;
  std::vector<MarkedExpression> geometry;  // kGeometryCount of them
  bool has_cluster = false;                // "cluster" is given
  Mark arguments_mark;
  std::vector<MarkedName> arguments;
  std::vector<MarkedExpression> where;
  std::vector<MarkedExpression> when;  // on the definition's axes: the launches that it is for
  int32_t benefit = 0;                 // solutions with a higher benefit are tried first
  bool waits_for_previous = false;     // "pdl"
  Mark pdl_mark;
  uint32_t early_params = 0;   // "reads_before_wait": bits of `arguments`
  uint8_t next_may_begin = 0;  // 1 + index of kNextMayBegin in `arguments`; 0 if it is not there
  std::optional<MarkedExpression> workspace;  // its size in bytes
  uint8_t workspace_argument = 0;  // 1 + index of kWorkspace in `arguments`; 0 without `workspace`
  std::optional<bool> batch_invariant;  // its claim, if it makes one
  bool lacks_invariance = false;        // a folder requires the claim, and it makes none
  SolutionOnError on_error = SolutionOnError::unset;  // from fibshim.json, for its definition
  OnMismatch on_mismatch = OnMismatch::unset;         // the same
  uint32_t shadow_interval = kShadowUnset;            // the same
  // The tolerances in "verify"; less than 0 if it states none.
  double atol = -1, rtol = -1;
  double matched_ratio = 1;
  // Arguments that "verify" supplies and no pattern does: a baseline's own.
  std::vector<std::pair<std::string, ValueType>> judged_arguments;
  bool is_complete = false;  // it has no errors

  // Set by the folder's checks: the first fault of its images.
  ErrorCode error_code = ErrorCode::success;
  std::string error_message;
  std::vector<KernelParam> params;  // of the kernel
  bool has_params = false;          // some image has a parameter table
  std::string image_without_wait;   // an image whose kernel has no griddepcontrol.wait
  uint32_t max_threads = 0;         // per block: the smallest limit of all images; 0: no limit
};

// True of an argument that no pattern has to supply.
inline bool is_supplied_by_shim(const SolutionSpec& solution, std::string_view name) {
  return name == kNextMayBegin || (solution.workspace && name == kWorkspace);
}

// `relative`: the file's path below the root. `known`: the texts of other solutions. Returns
// nothing if the names could not be read.
std::optional<SolutionSpec> read_solution(JsonValue root, const std::string& relative,
                                          KnownTexts* known, Diagnostics* diagnostics);

}  // namespace fibshim
