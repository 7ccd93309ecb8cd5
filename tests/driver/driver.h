// The objects behind the simulated driver's handles, and the code that every entry point begins
// with.
//
// Invariants: a handle is the address of a slot in a fixed arena. Slots are never unmapped, so a
// stale handle can be examined; a freed slot is the next one allocated (the real driver reuses
// handles at once, and code that uses a dead one must be caught). Everything but the launch path
// runs under one recursive lock; the launch path takes none, unless it captures.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "tests/driver/cuda_api.h"
#include "tests/driver/image.h"
#include "tests/driver/records.h"

// The entry points get names of their own: the exported functions call them and count their errors
// (counted.cc).
#define SYMBOL(exported, base, version, form) \
  extern "C" decltype(::exported) exported __asm__("sim_" #exported);
#include "tests/driver/symbols.def"
#undef SYMBOL

namespace simcuda {

inline constexpr int kMaxDevices = 8;
inline constexpr int kDriverVersion = 13000;

enum class Kind : uint32_t {
  none,
  context,
  stream,
  event,
  module,
  library,
  function,
  kernel,
  graph,
  node,
  graph_exec,
  green_context,
  link,
};

struct Slot {
  std::atomic<Kind> kind{Kind::none};
  uint32_t generation = 0;  // increases each time the slot is allocated
  Slot* next_free = nullptr;
};

// Slots of one type. The slot freed last is allocated first.
template <class T, size_t capacity>
class Pool {
 public:
  // Requires the lock. Aborts if the arena is full: a test has leaked that many handles.
  T* allocate(Kind kind) {
    T* slot;
    if (free_ != nullptr) {
      slot = static_cast<T*>(free_);
      free_ = slot->next_free;
    } else {
      const size_t index = used_.load(std::memory_order_relaxed);
      if (index == capacity) abort();
      slot = new (base_ + index) T();
      used_.store(index + 1, std::memory_order_release);
    }
    ++slot->generation;
    slot->kind.store(kind, std::memory_order_release);
    ++live_[static_cast<int>(kind)];
    return slot;
  }

  // Destroys the slot's contents but keeps its generation, which tells a later owner from this one.
  void release(T* slot) {
    --live_[static_cast<int>(slot->kind.load(std::memory_order_relaxed))];
    slot->kind.store(Kind::none, std::memory_order_release);
    const uint32_t generation = slot->generation;
    slot->~T();
    new (slot) T();
    slot->generation = generation;
    slot->next_free = free_;
    free_ = slot;
  }

  // Returns the slot behind a handle of that kind, else null. `handle` may be any value.
  T* find(const void* handle, Kind kind) const {
    T* slot = contains(handle);
    return slot != nullptr && slot->kind.load(std::memory_order_acquire) == kind ? slot : nullptr;
  }

  // Returns the slot at this address, whatever its kind, else null.
  T* contains(const void* handle) const {
    const uintptr_t offset =
        reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(base_);
    if (offset >= used_.load(std::memory_order_acquire) * sizeof(T) || offset % sizeof(T) != 0)
      return nullptr;
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(handle));
  }

  int64_t live(Kind kind) const { return live_[static_cast<int>(kind)]; }

 private:
  static T* reserve() {
    void* memory = mmap(nullptr, sizeof(T) * capacity, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<T*>(memory);
  }

  T* const base_ = reserve();
  std::atomic<size_t> used_{0};
  Slot* free_ = nullptr;
  int64_t live_[16] = {};
};

struct Context;
struct Module;
struct Library;
struct Graph;
struct Node;
struct Stream;

struct Device {
  int ordinal;
  int sm;  // 90 for compute capability 9.0
  char name[64];
  Context* primary = nullptr;  // made at the first retain and kept, so that its handle is stable
  int retain_count = 0;
  unsigned primary_flags = 0;

  int sm_count() const { return sm >= 100 ? 148 : sm >= 90 ? 132 : 108; }
  int max_shared_mem_optin() const {
    return (sm / 10 == 8 && sm != 80 ? 99 : sm == 80 ? 163 : 227) * 1024;
  }
  int max_shared_mem_per_sm() const { return max_shared_mem_optin() + 1024; }
};

// A capture in progress: shared by the streams that have joined it.
struct Capture {
  Graph* graph;
  Stream* origin;
  CUstreamCaptureMode mode;
  uint64_t thread_id;
  uint64_t id;
  bool is_invalid = false;
  bool owns_graph = true;  // false: begun by cuStreamBeginCaptureToGraph
  std::vector<Stream*> streams;
};

struct Stream : Slot {
  Context* context = nullptr;
  int stream_kind = 0;  // SimcudaStreamKind
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  std::atomic<bool> is_capturing{false};
  std::shared_ptr<Capture> capture;
  std::vector<Node*> capture_tail;  // the nodes that the next captured operation depends on
};

struct Event : Slot {
  Context* context = nullptr;
  unsigned flags = 0;
  bool was_recorded = false;
  uint64_t recorded_ns = 0;
  std::weak_ptr<Capture> capture;  // set by a record inside a capture
  std::vector<Node*> capture_nodes;
};

// Attributes that the program has set, per device; a kernel and the functions made from it share
// them.
struct KernelSettings {
  int max_dynamic_shared_mem = -1;  // -1: 48 KB less the static part
  int carveout = -1;
  int non_portable_cluster = 0;
  int cluster[3] = {0, 0, 0};
};

// A CUfunction or a CUkernel: one pool for both, so an address may change its kind.
struct Function : Slot {
  const KernelInfo* info = nullptr;
  // For a CUkernel: its code for each device; null until first needed there.
  std::atomic<const KernelInfo*> device_info[kMaxDevices] = {};
  Context* context = nullptr;  // for a CUfunction
  Module* module = nullptr;    // for a CUfunction
  Library* library = nullptr;  // for a CUkernel
  Function* kernel = nullptr;  // for a CUfunction that was made from a CUkernel
  char* name = nullptr;        // lent to callers; overwritten at unload
  KernelSettings own_settings[kMaxDevices];
  // cuFuncSetBlockShape and cuParamSet*
  uint32_t legacy_block[3] = {1, 1, 1};
  uint32_t legacy_shared_mem = 0;
  std::vector<uint8_t> legacy_params;

  KernelSettings& settings(int device) {
    return (kernel != nullptr ? kernel->own_settings : own_settings)[device];
  }
  const KernelSettings& settings(int device) const {
    return (kernel != nullptr ? kernel->own_settings : own_settings)[device];
  }
};

struct Module : Slot {
  Context* context = nullptr;
  Library* library = nullptr;  // the library that it was made for, or null
  std::shared_ptr<const Image> image;
  std::map<std::string, Function*> functions;
  std::map<std::string, std::unique_ptr<uint8_t[]>> globals;
};

struct Library : Slot {
  std::map<int, std::shared_ptr<const Image>> images;  // by device
  CUresult first_use_error = CUDA_SUCCESS;             // why there are no images
  std::map<std::string, Function*> kernels;
  std::map<Context*, Module*> modules;
};

struct Context : Slot {
  Device* device = nullptr;
  bool is_primary = false;
  bool is_green = false;
  bool is_active = false;  // false for a primary context that nobody retains
  std::atomic<CUresult> sticky_error{CUDA_SUCCESS};  // from a kernel; every later call returns it
  unsigned flags = 0;
  uint64_t id = 0;
  int attach_count = 1;
  Stream* legacy = nullptr;
  std::map<uint64_t, Stream*> per_thread;  // by thread id
  std::atomic<int> blocking_captures{0};   // captures on streams that wait for the legacy one
  std::vector<Module*> modules;
  std::vector<Stream*> streams;
  std::vector<Event*> events;
};

struct GreenContext : Slot {
  Context* context = nullptr;
  Device* device = nullptr;
};

// One launch, as requested. Nothing here is owned; graphs keep an OwnedLaunch.
struct Launch {
  Function* handle;
  uint32_t generation;  // that of the handle's slot
  const KernelInfo* info;
  Context* context;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_mem;
  bool is_cooperative;
  const CUlaunchAttribute* attributes;
  uint32_t attribute_count;
  const uint8_t* params;  // packed
  size_t extra_size;  // of the buffer that the host packed; 0: it passed the arguments one by one
};

// A launch copied by value.
struct OwnedLaunch {
  Launch launch{};
  std::vector<CUlaunchAttribute> attributes;
  std::vector<uint8_t> params;
  std::vector<void*> param_pointers;

  OwnedLaunch() = default;
  OwnedLaunch(const OwnedLaunch& other) { *this = other; }
  // Takes over the memory of `other`, which invalidates pointers to this one's parameters.
  OwnedLaunch& operator=(OwnedLaunch&& other) noexcept {
    std::swap(launch, other.launch);
    attributes.swap(other.attributes);
    params.swap(other.params);
    param_pointers.swap(other.param_pointers);
    return *this;
  }
  explicit OwnedLaunch(const Launch& other);
  OwnedLaunch& operator=(const OwnedLaunch& other);
  // What the driver tells of arguments that the host packed, with the size first. Null: it passed them one by one.
  void** extra() const;

 private:
  void point_at_own();
  mutable void* extra_[5];
};

struct Node : Slot {
  Graph* graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<Node*> dependencies;
  std::vector<CUgraphEdgeData> dependency_data;  // one per dependency
  OwnedLaunch kernel;
  std::function<void()> action;  // memcpy, memset, host
  Graph* child = nullptr;        // owned
  CUDA_MEMSET_NODE_PARAMS memset_params{};
  CUDA_MEMCPY3D memcpy_params{};
  CUDA_HOST_NODE_PARAMS host_params{};
  CUevent event = nullptr;
  std::vector<uint8_t> memory;  // for a memory node
  std::vector<Graph*> bodies;   // for a conditional node; owned
  std::vector<CUgraph> body_handles;
  bool condition = false;
  bool is_enabled = true;  // in an executable graph
};

// Maps each node of a copied graph to its generation at that time and its copy.
using NodeCopies = std::map<Node*, std::pair<uint32_t, Node*>>;

// An object that graphs keep alive for the host. It is destroyed with its last reference.
struct UserObject {
  CUhostFn destroy;
  void* data;
  unsigned references;
};
// Contains each object as often as it is referenced.
using UserObjects = std::vector<UserObject*>;

struct Graph : Slot {
  std::vector<Node*> nodes;
  UserObjects objects;
  bool is_owned = false;            // by a node, an exec or a capture: the host must not destroy it
  NodeCopies originals;             // for a clone: the nodes that it was made from
  CUgraphExec last_exec = nullptr;  // made of it; it lives if its generation is this
  uint32_t last_exec_generation = 0;
};

struct GraphExec : Slot {
  Graph* graph = nullptr;    // a private copy
  std::vector<Node*> order;  // its nodes, each after those that it depends on
  NodeCopies copies;         // of the source graph's nodes
  Context* context = nullptr;
  cuuint64_t flags = 0;
};

struct Link : Slot {
  std::vector<uint8_t> cubin;
  bool is_complete = false;
};

struct Pools {
  Pool<Context, 1 << 14> contexts;
  Pool<Stream, 1 << 18> streams;
  Pool<Event, 1 << 18> events;
  Pool<Module, 1 << 18> modules;
  Pool<Library, 1 << 18> libraries;
  Pool<Function, 1 << 20> functions;  // CUfunctions and CUkernels
  Pool<Graph, 1 << 18> graphs;
  Pool<Node, 1 << 20> nodes;
  Pool<GraphExec, 1 << 18> graph_execs;
  Pool<GreenContext, 1 << 10> green_contexts;
  Pool<Link, 1 << 10> links;
};

enum class DriverState : int { uninitialized, ready, deinitialized, forked };

// Never destroyed: the host may call the driver from its own destructors.
struct Driver {
  std::recursive_mutex lock;
  Pools pools;
  std::vector<Device> devices;
  uint64_t next_id = 1;
  // Device and pinned host allocations, by base address. `context` is null if any context may use
  // it.
  struct Allocation {
    size_t bytes;
    Context* context;
    bool is_host;
    bool is_registered = false;  // the host's own memory
  };
  std::map<uintptr_t, Allocation> allocations;
  std::vector<std::shared_ptr<Capture>> captures;  // in progress
  std::atomic<int> capture_count{0};               // their number, readable without the lock
};

extern std::atomic<DriverState> g_state;
Driver& driver();

using Lock = std::lock_guard<std::recursive_mutex>;

// The state of seeded faults in a thread; see chaos.cc.
struct ThreadChaos {
  uint64_t random = 0;  // state of its generator
  bool is_in_host_call = false;
  bool was_forwarded = false;  // the host's own call has arrived and did not fail
  Api host_call{};
  SimcudaHostCall result{};
};

// The state of a thread: its context stack, its capture mode, its counters.
struct ContextRef {
  Context* context;
  uint32_t generation;
};
struct ThreadState {
  uint64_t id = 0;
  ContextRef current{nullptr, 0};  // the top of the stack
  std::vector<ContextRef> below;   // the rest
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  // The thread's own default stream in the context that it used last.
  Stream* per_thread = nullptr;
  ContextRef per_thread_context{nullptr, 0};
  std::vector<uint8_t> pack_buffer;  // for arguments given as pointers
  ThreadRecords* records = nullptr;
  ThreadChaos chaos;
};

// __thread, since its reads need no initialisation check.
extern __thread ThreadState* t_state __attribute__((tls_model("initial-exec")));
ThreadState& make_thread_state();
inline ThreadState& thread_state() {
  ThreadState* state = t_state;
  return state != nullptr ? *state : make_thread_state();
}

// Faults that a test asked for, by name (faults.cc) or by seed (chaos.cc). Checked only if there
// are any. `kernel` is null at the start of a call, and set when a launch knows its kernel.
extern std::atomic<bool> g_has_faults;
CUresult find_fault(Api api, const char* kernel);
// Returns the sticky error that a kernel that has just run leaves in its context.
CUresult find_poison(const char* kernel);
CUresult find_seeded_fault(Api api, const char* kernel);
bool is_chaos_on();
// Returns CUDA_SUCCESS if another image may be loaded, else CUDA_ERROR_OUT_OF_MEMORY. Requires the
// lock.
CUresult check_image_budget(Api api);
bool is_launch(Api api);

CUresult not_ready();

// Every entry point begins with this: counts the call, and refuses it before cuInit and after exit.
inline CUresult enter(Api api) {
  count_call(*thread_state().records, api);
  if (g_state.load(std::memory_order_relaxed) != DriverState::ready) [[unlikely]]
    return not_ready();
  if (g_has_faults.load(std::memory_order_relaxed)) [[unlikely]] {
    if (const CUresult fault = find_fault(api, nullptr); fault != CUDA_SUCCESS) return fault;
  }
  return CUDA_SUCCESS;
}

// Returns the result of `call`, unless it is success.
#define SIM_TRY(call) \
  if (const CUresult sim_error = (call); sim_error != CUDA_SUCCESS) return sim_error

// Declares a pointer to the object found, or returns `error` if none was found.
#define SIM_FIND(name, found, error) \
  auto* name = found;                \
  if (name == nullptr) return error

// Declares a variable that `call` sets through a pointer to it.
#define SIM_GET(type, name, call) \
  type name = nullptr;            \
  SIM_TRY(call)

#define SIM_ENTER(name) SIM_TRY(::simcuda::enter(::simcuda::Api::name))

// Like SIM_ENTER, and declares `context`, the thread's current context.
#define SIM_ENTER_CONTEXT(name)                           \
  SIM_ENTER(name);                                        \
  [[maybe_unused]] ::simcuda::Context* context = nullptr; \
  SIM_TRY(::simcuda::current_context(&context))

// Like SIM_ENTER, with the driver's lock held to the end of the scope.
#define SIM_ENTER_LOCKED(name) \
  SIM_ENTER(name);             \
  const Lock guard(driver().lock)

// Defines an entry point that returns one expression.
#define ENTRY(name, parameters, result) \
  CUresult name parameters {            \
    SIM_ENTER(name);                    \
    return result;                      \
  }

#define ENTRY_LOCKED(name, parameters, result) \
  CUresult name parameters {                   \
    SIM_ENTER_LOCKED(name);                    \
    return result;                             \
  }

// The same, with `api`, `context` and `is_ptsz` declared for the expression.
#define ENTRY_OF_FORM(name, form, parameters, result) \
  CUresult name parameters {                          \
    [[maybe_unused]] constexpr Api api = Api::name;   \
    [[maybe_unused]] constexpr bool is_ptsz = form;   \
    SIM_ENTER_CONTEXT(name);                          \
    return result;                                    \
  }
#define ENTRY_IN_CONTEXT(name, parameters, result) ENTRY_OF_FORM(name, false, parameters, result)

// The same for both default streams: cuX, and cuX_ptsz or cuX_ptds.
#define ENTRY_PTSZ(name, parameters, result)     \
  ENTRY_OF_FORM(name, false, parameters, result) \
  ENTRY_OF_FORM(name##_ptsz, true, parameters, result)
#define ENTRY_PTDS(name, parameters, result)     \
  ENTRY_OF_FORM(name, false, parameters, result) \
  ENTRY_OF_FORM(name##_ptds, true, parameters, result)

// Defines an entry point that returns one value of the object that `find` finds for a handle.
#define ENTRY_VALUE(name, type, handle_type, find, error, value) \
  CUresult name(type* out, handle_type handle) {                 \
    SIM_ENTER(name);                                             \
    [[maybe_unused]] const auto* found = find(handle);           \
    if (found == nullptr) return error;                          \
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;         \
    *out = value;                                                \
    return CUDA_SUCCESS;                                         \
  }

inline CUresult current_context(Context** context) {
  const ContextRef& current = thread_state().current;
  if (current.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (current.context->generation != current.generation || !current.context->is_active ||
      current.context->kind.load(std::memory_order_relaxed) != Kind::context)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = current.context;
  return current.context->sticky_error.load(std::memory_order_relaxed);
}

// Stores a value in the caller's variable, which must not be null.
template <class T, class V>
CUresult give(T* out, V value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = static_cast<T>(value);
  return CUDA_SUCCESS;
}

// Ends the process with SIGSEGV after printing the reason. For calls that were seen to crash inside
// the real driver, so that no test can rely on an answer.
[[noreturn]] void crash_like_the_real_driver(const char* reason);

// device.cc
Context* find_context(CUcontext handle);
Context* make_context(Device& device, unsigned flags);
void end_context(Context& context);  // ends everything that lives in it, too
Device* find_device(CUdevice device);

// memory.cc
void free_memory_of(Context& context);

// stream.cc
Stream* make_stream(Context& context, int stream_kind, unsigned flags);
CUresult find_stream(CUstream handle, bool is_ptsz, Context* context, Stream** stream);
void end_stream(Stream& stream);
void invalidate_captures_of(Context& context);
// For calls that captures may forbid the thread to make (cuMemAlloc and others).
CUresult check_unsafe_call();
// For work submitted to `stream`: refuses the legacy stream while a blocking stream captures.
CUresult check_legacy_rule(Stream& stream);
// Adds a node after the stream's captured work.
Node* capture_node(Stream& stream, CUgraphNodeType type);
// Runs `action` now, or makes a node of it if the stream captures.
CUresult submit(Stream& stream, CUgraphNodeType type, std::function<void()> action,
                const std::function<void(Node&)>& describe = {});
uint64_t now_ns();

// module.cc
void end_module(Module& module);
CUresult module_of_library(Library& library, Context& context, Module** module);
CUresult function_of_kernel(Function& kernel, Context& context, Function** function);
inline Function* find_function(const void* handle) {
  return driver().pools.functions.find(handle, Kind::function);
}
inline Function* find_kernel(const void* handle) {
  return driver().pools.functions.find(handle, Kind::kernel);
}

// counted.cc
void* exported_function(Api api);

// launch.cc
int default_max_dynamic_shared_mem(const KernelInfo& info);
int max_active_blocks(const Function& function, const Device& device, uint32_t threads,
                      size_t dynamic_bytes);
CUresult check_launch(Launch* launch);
// Packs arguments given in either form. They stay valid until the thread's next launch. A buffer may end within
// the last argument, as NCCL's: zeros stand for the rest.
CUresult pack_params(const KernelInfo& info, void** params, void** extra, Launch* out);
// The origin of a launch, for its record.
struct Origin {
  Api api;
  bool is_ptsz;
  bool is_from_graph;
  bool was_packed;
};
void run_launch(const Launch& launch, const Origin& origin, const Stream& stream,
                CUstream stream_handle);
// Fills in the request, without its origin.
void describe(const Launch& launch, SimcudaLaunch* out);
// Finds the code of a CUfunction or CUkernel for a device. Fails if there is none.
CUresult code_on(Function& function, Device& device, const KernelInfo** info);

// graph.cc
Graph* make_graph();
void end_graph(Graph& graph);
Node* make_node(Graph& graph, CUgraphNodeType type);
Graph* clone_graph(const Graph& source, NodeCopies* copies);

// graph_edges.cc
void add_dependency(Node& node, Node& on, const CUgraphEdgeData& data);
void remove_dependency(Node& node, const Node& on);

}  // namespace simcuda
