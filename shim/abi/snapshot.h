// The narrow interface between the loader and the shim: one or several config folders, validated
// and compiled.
//
// A snapshot is one contiguous, immutable block of plain structs. Everything inside refers to
// everything else by byte offset from the block's start, so the block can be copied, written to a
// file and mapped again. The loader builds it and may throw inside; the shim only reads it.
// Any thread may read a snapshot without synchronisation.
//
// All text is UTF-8 and NUL-terminated. Offset 0 means "none".
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shim/abi/element.h"

namespace fibshim {

inline constexpr uint32_t kSnapshotVersion = 14;
inline constexpr uint32_t kLoaderApiVersion = 8;

// Limits of one folder, checked by the loader; the launch path sizes its stack arrays by them.
inline constexpr uint32_t kMaxParams = 128;     // parameters of one kernel, original or replacement
inline constexpr uint32_t kMaxKeyParts = 8;     // launch-time values in one definition name
inline constexpr uint32_t kMaxCaptures = 8;     // named groups that a pattern uses
inline constexpr uint32_t kMaxStackDepth = 16;  // values on an expression's stack
inline constexpr uint32_t kMaxNameLength = 512;     // bytes of a definition name, NUL included
inline constexpr uint32_t kMaxChoices = 8;          // solutions of one definition
inline constexpr uint32_t kMaxRewriteKernels = 8;   // kernels of one rewrite pattern
inline constexpr int64_t kMaxWorkspace = 64 << 20;  // bytes of all workspaces of a process

using Offset = uint32_t;

// `count` structs of type T that start `at` bytes into the snapshot.
template <class T>
struct Array {
  Offset at;
  uint32_t count;
};

// How the bytes of a kernel parameter are read. `address` is a 64-bit pointer.
enum class ValueType : uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float32,
  float64,
  address,
};

// Index into LaunchView::geometry.
enum GeometryIndex : uint16_t {
  kGridX,
  kGridY,
  kGridZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kClusterX,
  kClusterY,
  kClusterZ,
  kSharedMem,
  kGeometryCount,
};

// The part of a launch that expressions can read. `params[i]` points at the bytes of parameter i.
struct LaunchView {
  void* const* params;
  const int64_t* captures;            // values of the pattern's captures, from the record
  uint32_t geometry[kGeometryCount];  // threads and blocks; shared memory in bytes
};

// One instruction of a compiled expression, which runs on a stack machine over int64 and double.
// A jump skips `imm` steps.
enum class Op : uint8_t {
  load_param,     // push parameter `index`, `offset` bytes in, read as `type`
  load_field,     // push the value of the Field in imm
  load_geometry,  // push geometry[index]
  load_capture,   // push captures[index]
  push,           // push imm (an int64, or the bits of a double)
  to_float,       // the top of the stack: int64 -> double
  add,
  sub,
  mul,
  div,
  mod,
  neg,  // int64, checked: C's truncating division
  min,
  max,
  ceil_div,  // int64, checked
  eq,
  ne,
  lt,
  le,
  gt,
  ge,  // int64 -> 0 or 1
  feq,
  fne,
  flt,
  fle,
  fgt,
  fge,                       // double -> 0 or 1
  logical_not,               // int64 -> 0 or 1
  jump_if_zero_else_pop,     // for &&: keeps the 0 and jumps, or drops the value
  jump_if_nonzero_else_pop,  // for ||: keeps the value and jumps, or drops it
  to_bool,                   // int64 -> 0 or 1
  // Statements, which end a `where` clause. If one does not hold, the launch falls back.
  // Each of those after `require` is a whole clause.
  // Pops; added to the 8-byte parameter `index` at `offset`, of which all 64 bits count: (sum & imm)
  // must be 0.
  require_aligned_sum,
  require,  // pops; must not be 0
  // 8-byte parameter `index` at `offset`: (value & imm) must be 0. All 64 bits count, so an address
  // from 2^63 on, which has no value in other expressions, can be aligned.
  require_aligned,
  // Parameter `index` at `offset`, read as the integer `type`: compared with imm.
  require_equal,
  require_unequal,
  require_least,
  require_most,
  require_float,  // read as the floating-point `type`: must equal the double whose bits are imm
  require_field,  // read as the integer `type`: must equal the Field in imm
};

// Parameter `index` at `offset`, read as the integer `type`, times `factor`, plus `added`. For an
// 8-byte type these are 1 and 0.
struct Field {
  uint16_t offset;
  uint8_t index;
  ValueType type;
  int16_t factor, added;
};
static_assert(sizeof(Field) == sizeof(int64_t));

struct Step {
  Op op;
  ValueType type;
  uint16_t index;
  uint32_t offset;
  int64_t imm;
};
static_assert(sizeof(Step) == 16);

using Program = Array<Step>;

// One value of a definition's name that the launch supplies.
struct KeyPart {
  Program program;
};

// A piece of a definition's name: literal text, key part `index`, or capture `index`.
struct NamePart {
  enum class Kind : uint8_t { text, key, capture };
  Kind kind;
  uint8_t index;
  uint16_t reserved;
  Offset text;
};

// 128-bit XXH3 of the module image that a kernel comes from, or of a part of it.
struct ImageHash {
  uint64_t low, high;

  bool operator==(const ImageHash&) const = default;
};

struct ImageHashes {
  ImageHash file;  // of all bytes of the image
  ImageHash code;  // of what the code does (loader/read/code_hash.h); 0 if not a single cubin
};

// The bindings of one pattern for one definition name.
struct Route {
  Offset definition;  // its name
  uint32_t binding;   // index of the first binding in Snapshot::bindings
  uint32_t count;     // of bindings, one per solution, in the order of trial; at most kMaxChoices
};

// --- the fast form: decides the commonest launches without expressions ---
//
// The loader makes it from the same text as the programs. Where the two could differ, the programs
// are right and the fast form is marked `computed`, `slow` or not whole. It holds only param and
// geometry indexes below 256.

// cuLaunchKernel's own order, without a cluster: grid x y z, block x y z, shared memory.
inline constexpr uint32_t kPlainGeometryCount = 7;
inline constexpr uint32_t kPlainSharedMem = 6;

// How to read a pattern's key that is one parameter or nothing. A uint32 is read as int32, too: its
// upper half is negative here.
enum class KeyKind : uint8_t { none, int32, int64, computed };

struct FastKey {
  KeyKind kind;
  uint8_t reserved;
  uint16_t param;
  uint32_t offset;
};

// Checks `pointer % n == 0`, with one n for all, and `pointer != 0`, of 8-byte parameters that are
// read from their first byte. `aligned` is read in pairs: an odd last one is repeated.
struct FastChecks {
  uint8_t aligned[8];
  uint8_t aligned_count;
  uint8_t alignment_mask;  // n - 1
  uint8_t not_null_count;
  uint8_t not_null[5];
};
static_assert(sizeof(FastChecks) == 16);

// geometry[target] = min(ceil_div(source, divisor), most); must be from 1 to INT32_MAX.
struct FastDimension {
  enum class Source : uint8_t { geometry, param };
  Source source;
  uint8_t at;      // geometry: index in the plain order, not shared memory; param: a 4-byte integer
  uint8_t target;  // index in the plain order
  uint8_t
      shift;  // kNotComputed: the source unchanged; else log2 of a divisor that is a power of two
  uint32_t divisor;  // a divisor that is no power of two; 0: use `shift`
  uint32_t most;     // INT32_MAX: no limit

  static constexpr uint8_t kNotComputed = 255;
};
static_assert(sizeof(FastDimension) == 12);

inline constexpr uint32_t kMaxFastDimensions = 2;
inline constexpr uint32_t kMaxFastArguments = 32;

enum class FastWay : uint8_t {
  direct,     // the checks, dimensions and arguments below are complete
  computed,   // run the programs; `geometry` and `has_dynamic` are valid
  clustered,  // run the programs and launch with a cluster
  slow,       // there are more arguments than the fast side has room for, or a workspace
};

// A solution's `when` if it is a range of one value: low <= value <= low + span, in 64 bits without
// overflow. The `type` of a parameter is int32, uint32 or int64.
struct FastRange {
  enum class Source : uint8_t { always, geometry, param, computed };
  Source source;
  ValueType type;
  uint8_t at;  // geometry: index in the plain order; param: its index
  uint8_t reserved;
  uint32_t offset;  // param: the first byte to read
  int64_t low;
  uint64_t span;
};
static_assert(sizeof(FastRange) == 24);

struct FastForm {
  FastWay way;
  uint8_t argument_count;  // rounded up to a multiple of 8; 0: pass the arguments unchanged
  uint8_t dimension_count;
  uint8_t may_begin_early;  // Solution::may_begin_early()
  uint16_t has_dynamic;     // bit i: geometry value i, as GeometryIndex, is not constant
  uint16_t reserved;
  FastChecks checks;  // of the pattern's and the solution's `where`; complete if direct
  FastDimension dimensions[kMaxFastDimensions];
  uint32_t geometry[kPlainGeometryCount];  // the constant values, in the plain order
  uint8_t arguments[kMaxFastArguments];    // the original's parameter for each; padded with 0
};
static_assert(sizeof(FastForm) == 108);

// What the plans of a launch depend on: whatever the programs of a pattern and of its bindings read. Launches of a kernel for
// which all inputs are equal are planned alike.
struct LaunchInput {
  enum class Kind : uint8_t {
    word,       // 4 bytes of a parameter
    long_word,  // 8 bytes
    byte,       // 1 byte
    half_word,  // 2 bytes
    geometry,   // value `param`, as GeometryIndex
    sign,       // of 8 bytes as an int64: whether they are positive, 0 or negative
    aligned,    // whether no bit of `more` is set in 8 bytes
    same,       // whether 8 bytes equal those of other_param() at other_offset()
  };
  Kind kind;
  uint8_t param;
  uint16_t offset;
  uint32_t more;

  uint32_t other_param() const { return more >> 16; }
  uint32_t other_offset() const { return more & UINT16_MAX; }
  bool operator==(const LaunchInput&) const = default;
};
static_assert(sizeof(LaunchInput) == 8);
inline constexpr uint32_t kLaunchInputKinds = 8;
inline constexpr uint32_t kMaxLaunchInputs = 72;

enum class PatternKind : uint8_t {
  launch,   // reads the launch of one kernel as a call of a definition
  rewrite,  // reads the launches of several kernels as one call; fits no symbol
  member,   // one kernel of a rewrite: only symbol, layout and image
};

struct Pattern {
  Offset label;  // for a member, "label[0]" and so on
  Offset file;   // path below the folder's root
  int32_t benefit;
  uint32_t has_params;          // 1 when `param_sizes` was given
  Array<uint16_t> param_sizes;  // bytes, in order
  Array<ImageHash> images;      // the file or code hash is one of these; empty: any image
  uint32_t capture_count;
  Array<KeyPart> key;
  Array<NamePart> name;
  Program where;
  Array<Route> routes;        // sorted by definition name (strcmp)
  Array<LaunchInput> inputs;  // if has_all_inputs
  FastKey fast_key;
  FastChecks fast_checks;
  uint8_t has_whole_checks;  // `where` consists of fast_checks and nothing else
  PatternKind kind;
  uint8_t has_all_inputs;  // `inputs` tell all that plans depend on
  uint16_t rewrite;        // rewrite and member: index into Snapshot::rewrites
};

// Memory that a kernel of a rewrite reads or writes through one pointer.
struct RewriteBuffer {
  uint16_t param;  // of the rewrite's pattern
  uint8_t member;  // the kernel
  uint8_t is_written;
  uint8_t is_dead;           // only the rewrite's kernels read it
  uint8_t group;             // buffers of one group are the same, as the pattern's `where` says
  uint8_t reaches_end;       // extends to the end of the allocation; `bytes` is unused
  uint8_t is_written_first;  // solutions write it first: later kernels may write there, too
  uint32_t offset;           // of the pointer within the parameter
  Program shift;             // bytes that are added to it; empty: none
  Program bytes;             // size
};

// Several kernels of a graph that become one launch. The rewrite's pattern reads them as one launch
// whose parameters are those of all kernels in turn. Those of each kernel but the first are
// followed by its geometry as kGeometryCount parameters of four bytes.
struct Rewrite {
  uint32_t pattern;  // index into Snapshot::patterns
  uint32_t
      first_member;  // index of the first of `member_count` patterns, in the order of execution
  uint8_t member_count;
  uint8_t is_analysis;  // counted where it would apply, but never applied
  uint16_t reserved;
  uint16_t first_param[kMaxRewriteKernels];  // of each member, among the pattern's
  Array<RewriteBuffer> buffers;
};

enum class ImageKind : uint8_t { cubin, fatbin, ptx };

struct Image {
  Offset path;  // below the folder's root
  ImageKind kind;
  uint8_t is_arch_specific;  // such as sm_90a: runs only on exactly that SM
  uint16_t sm;               // 90 for sm_90; 0 for a fatbin; for PTX the .target
  uint8_t sha256[32];
};

// Ranks how well an image suits a GPU: the exact SM, else the highest lower minor of the same
// major, else a fatbin, else PTX (fibshim-config(5), images). Returns 0 if it cannot run.
constexpr uint32_t image_rank(const Image& image, uint32_t sm) {
  switch (image.kind) {
    case ImageKind::cubin:
      if (image.sm == sm) return 2000u + image.is_arch_specific;
      if (image.is_arch_specific || image.sm / 10 != sm / 10 || image.sm > sm) return 0;
      return 1000u + image.sm;
    case ImageKind::fatbin: return 2;
    case ImageKind::ptx: return image.sm <= sm ? 1 : 0;
  }
  return 0;
}

// on_error of a definition in fibshim.json; `unset`: the setting for all definitions applies.
enum class SolutionOnError : uint8_t { unset, fail, fallback };

// The same for mismatches that shadow checks find.
enum class OnMismatch : uint8_t { unset, warn, quarantine, quarantine_job };
inline constexpr uint32_t kShadowUnset = UINT32_MAX;

// A solution is broken if one of its files is: `fibshim check` reports it, and a launch that it
// would serve returns `error_code` (or falls back with FIBSHIM_ON_ERROR=fallback).
struct Solution {
  Offset name;
  Offset definition;
  Offset file;  // path below the folder's root
  Offset kernel;
  Array<Image> images;          // best first for equal SM: cubins, then fatbins, then PTX
  Array<uint16_t> param_sizes;  // of `kernel`, bytes; empty if there is only a fatbin or PTX
  uint32_t max_shared_mem;      // dynamic shared memory in bytes; UINT32_MAX if it is an expression
  uint32_t early_params;        // "reads_before_wait": bit i: parameter i is read before that wait
  uint32_t kept_params;         // bit i: the kernel writes nothing that parameter i points to
  uint8_t waits_for_previous;   // "pdl": the kernel executes griddepcontrol.wait itself
  SolutionOnError on_error;     // of its definition
  uint16_t folder;              // index into Snapshot::roots
  int32_t error_code;           // 0, or the CUresult that a launch must return
  Offset error_message;
  uint8_t next_may_begin;  // 1 + the index of its parameter "next_may_begin"; 0 if it has none
  OnMismatch on_mismatch;  // of its definition
  uint8_t workspace;       // 1 + the index of its parameter "workspace"; 0 if it has none
  uint8_t reserved;
  // Of its definition: one of so many launches is checked; 0: none; kShadowUnset: the setting.
  uint32_t shadow_interval;
  // The tolerances of its "verify" block; negative without one.
  double atol, rtol;
  double matched_ratio;  // the share of elements that must be within them

  // True if it may begin before the preceding kernel has ended, whatever that kernel is.
  bool may_begin_early() const { return waits_for_previous != 0 && early_params == 0; }
};

// How one argument of the replacement is made.
struct ArgumentMap {
  enum class Kind : uint8_t {
    pass,       // the original's parameter `param`, `offset` bytes in, without a copy
    integer,    // the program's int64, stored in `size` bytes; must fit
    floating,   // the program's double, stored in `size` bytes (4 or 8)
    workspace,  // the workspace's address, which is put in before the launch
    shifted,    // the pointer that the original has there, and the program's bytes added to it
  };
  Kind kind;
  uint8_t size;
  uint16_t param;
  uint32_t offset;
  Program program;
};

// One geometry value of the replacement.
struct GeometryMap {
  enum class Kind : uint8_t { constant, copy, program };
  Kind kind;
  uint8_t index;  // copy: the original's value, as GeometryIndex
  uint16_t reserved;
  uint32_t constant;
  Program program;
};

// One axis of a tensor: its length, and its stride in elements.
struct TensorAxis {
  Program count, stride;
};
inline constexpr uint32_t kMaxTensorAxes = 4;
inline constexpr uint32_t kMaxTensors = 32;  // of one binding

// A tensor that a pointer of the original's launch points to.
struct TensorUse {
  Offset name;
  uint32_t offset;  // of the pointer within the parameter
  uint16_t param;
  ElementKind element;
  uint8_t is_written;  // by the original
  uint8_t has_extent;  // `axes` give its size
  uint8_t may_vary;    // its content may differ from run to run: not compared
  uint8_t reserved[2];
  Program shift;  // bytes that are added to the pointer; empty: none
  Array<TensorAxis> axes;
};

// An axis of the definition whose value each launch supplies.
struct NamedAxis {
  Offset name;
  Program value;
};

enum class BindingState : uint8_t { ready, refused, broken };

// One pattern joined with one solution: all that a redirected launch needs.
struct Binding {
  uint32_t pattern;
  uint32_t solution;
  BindingState state;
  // Arguments are passed unchanged: same count, same order, nothing computed.
  uint8_t is_identity;
  uint8_t has_cluster;  // the replacement's cluster is not 1 x 1 x 1
  uint8_t reserved;
  Offset reason;  // refused or broken: why
  Array<ArgumentMap> arguments;
  GeometryMap geometry[kGeometryCount];
  Program workspace;  // its size in bytes; empty: the solution has none
  Program where;      // the solution's
  Program when;       // the launches it serves; empty: all. Set in every state
  FastRange range;    // `when` as a range
  FastForm fast;
  // For shadow checks. Empty: results cannot be compared, as they are random samples.
  Array<TensorUse> tensors;
  Array<NamedAxis> axes;
};

// A setting from the folder's fibshim.json. `name` carries the FIBSHIM_ prefix.
struct Setting {
  Offset name;
  Offset value;
};

struct Snapshot {
  char magic[8];         // "FIBSNAP"
  uint32_t version;      // kSnapshotVersion
  uint32_t size_bytes;   // of the whole block
  uint64_t digest[2];    // XXH3-128 of every file that was read, and its path
  Offset root;           // absolute path of the folder, links resolved; several have ':' in between
  uint64_t root_device;  // st_dev and st_ino of the folder that was read; for several folders,
  uint64_t root_inode;   // mix_identity() (folder_list.h)
  Array<Offset> roots;   // the path of each folder
  Array<Pattern>
      patterns;  // in the order of trial: descending benefit, then label; rewrites' members last
  Array<Rewrite> rewrites;  // in the order of trial
  Array<Solution> solutions;
  Array<Binding> bindings;
  Array<Setting> settings;

  template <class T>
  const T* begin(Array<T> array) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(this) + array.at);
  }
  const char* text(Offset at) const { return reinterpret_cast<const char*>(this) + at; }
};

// A pattern whose symbol fits, with the captures of its named groups.
struct SymbolMatch {
  uint32_t pattern;
  struct Capture {
    uint16_t begin, length;  // bytes of the symbol; 0, 0 if the group took no part
    int64_t value;           // its decimal value; 0 if it is not a number
  } captures[kMaxCaptures];
};

// Bytes of an image whose sha256 has just been verified. Valid until release_image.
struct ImageBytes {
  const void* data;
  size_t size;
  void* owner;
};

// The conditions that a folder must meet. The caller passes them, since the host may change the
// environment at any time, while the values at the start of the process remain in force.
enum class Trust : uint8_t;  // shim/abi/settings.h
struct FolderRules {
  const char* required_key = "";  // the key that must have signed it, FIBSHIM_REQUIRE_KEY; "": none
  Trust trust{};                  // who may be able to write it and its images, FIBSHIM_TRUST
};

// The loader's functions for the shim. None throws. Messages are NUL-terminated and cut to fit.
struct LoaderApi {
  uint32_t version;  // kLoaderApiVersion

  // Reads and checks `folder` by these rules and no others. Returns nullptr if the folder is
  // missing or invalid; `message` then holds "file:line:col: error: reason [rule]" of the first
  // error and the number of further ones. Otherwise it is empty or names broken solutions.
  const Snapshot* (*open)(const char* folder, const FolderRules& rules, char* message,
                          size_t message_size);

  // Frees a snapshot. No launch may still be reading it.
  void (*close)(const Snapshot* snapshot);

  // Writes the patterns whose symbol fits to `out`, in the order of trial, and returns how many fit
  // (which may exceed `capacity`). Thread-safe. The caller checks parameter layout and image hash.
  uint32_t (*match)(const Snapshot* snapshot, const char* symbol, SymbolMatch* out,
                    uint32_t capacity);

  // Reads one image and verifies its sha256. Returns 0, or a CUresult with `message` filled.
  int (*read_image)(const Snapshot* snapshot, uint32_t solution, uint32_t image, ImageBytes* out,
                    char* message, size_t message_size);
  void (*release_image)(ImageBytes* bytes);

  // Computes the hashes of the image of `size` bytes.
  void (*identify_image)(const void* data, size_t size, ImageHashes* out);

  // Calls `use` with the name and the number of parameters of every kernel in the image. A fat
  // binary is read for one architecture, as the others hold the same kernels. Bytes that are no
  // image, or an image that is too large to be read through, have none.
  void (*list_kernels)(const void* data, size_t size, void* context,
                       void (*use)(void* context, const char* name, uint32_t param_count));
};

}  // namespace fibshim

// The one symbol that libfibloader.so exports. Returns nullptr for a version it does not speak.
extern "C" const fibshim::LoaderApi* fibloader_api(uint32_t version);
