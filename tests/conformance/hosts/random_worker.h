// One thread of a random program: loads, looks up, launches, captures, builds graphs, replays,
// unloads and ends contexts, in the order that its seed gives, and computes what must run and be
// counted.
//
// With SIMCUDA_CHAOS faults may strike meanwhile: see faulted.h. Then the effect of a launch is not
// predicted but read from the driver's record, launch by launch, and must be one that errors
// permit.
//
// A thread uses only handles of its own, so a program is valid however its threads interleave. But
// handle values move between threads, since the driver reuses a dead one at once.
#pragma once

#include <algorithm>
#include <memory>

#include "tests/conformance/hosts/faulted.h"
#include "tests/conformance/hosts/graphs.h"
#include "tests/conformance/hosts/random.h"

namespace conform {

enum class Kernel { step, free, other_step, other };

struct Handle {
  CUfunction function;  // or a CUkernel
  Kernel kernel;
  bool is_kernel;  // a CUkernel
  int owner;       // module or library
  int place;       // the context where it is valid; -1: any
};

// A module or a library.
struct Owner {
  int id;
  CUmodule module;
  CUlibrary library;
  bool is_other;  // the second image
  int place;      // a module's context; -1: a library
};

// A context and a stream in it.
struct Place {
  int id;
  CUcontext context;
  CUstream stream;
};

// The required effect of one launch.
struct Effect {
  Ran ran;
  Counts counts;
};

inline void add(Ran* to, const Ran& more, long times = 1) {
  to->step += more.step * times;
  to->free += more.free * times;
  to->other += more.other * times;
  to->curated1 += more.curated1 * times;
  to->curated2 += more.curated2 * times;
  to->curated3 += more.curated3 * times;
}

inline void add(Counts* to, const Counts& more) {
  to->hit += more.hit;
  to->no_solution += more.no_solution;
  to->where += more.where;
  to->refused += more.refused;
  to->error += more.error;
  to->untracked += more.untracked;
}

inline long total(const Counts& counts) {
  return counts.hit + counts.no_solution + counts.where + counts.refused + counts.error +
         counts.untracked;
}

// The way in which a launch is made.
enum class Way { launch, legacy };

inline Effect effect_of(Kernel kernel, int shape, int value, Way way) {
  Effect effect;
  switch (kernel) {
    case Kernel::free: effect.ran.free = 1; break;
    case Kernel::other: effect.ran.other = 1; break;
    case Kernel::other_step: effect.ran.step = 1; break;
    case Kernel::step:
      effect.ran.step = 1;
      if (way == Way::legacy) {
        effect.counts.refused = 1;
      } else if (value == kRefusedValue) {
        effect.counts.where = 1;
      } else if (shape == kNoSolution) {
        effect.counts.no_solution = 1;
      } else {
        effect.ran.step = 0;
        add_curated(&effect.ran, shape);
        effect.counts.hit = 1;
      }
      return effect;
  }
  effect.counts.untracked = 1;
  return effect;
}

// A launch that became a node, and what the node must run and count as when it is instantiated.
struct Launched {
  Kernel kernel;
  int shape;
  int value;
  Effect effect;
  bool is_there;  // false: the launch failed
};

inline const char* name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::step:
    case Kernel::other_step: return kStep;
    case Kernel::free: return kFree;
    case Kernel::other: return "conform_other";
  }
  return "";
}

// Returns the value argument of one of this suite's kernels.
inline int value_in(const SimcudaLaunch& launch, bool is_first_image) {
  int value = 0;
  memcpy(&value, launch.params + (is_first_image ? 12 : 0), sizeof value);
  return value;
}

// With faults: how often a launch failed because of the shim's own calls, and how often it is
// unknown whether the replacement's launch failed or the original's.
struct Failures {
  long own = 0;
  long unknown = 0;
};

// An executable graph, and what one replay must run.
struct Replayable {
  CUgraph graph;  // null: only captured
  CUgraphExec executable;
  std::vector<Launched> nodes;
  // The shim keeps its originals, so nodes that are set in it may be replaced.
  bool is_kept;
  std::vector<int> owners;
  int place;
  // For a graph with one node: that node, and the kernel that it was made with.
  CUgraphNode node;
  Handle handle;
  bool is_updated = false;  // updated from a graph that is gone
  // With faults: a call failed for the shim's own exec, hidden from the host. Since then the host's
  // own exec runs.
  bool has_lost_copy = false;
};

constexpr int kShapes[] = {1, 2, 3, kNoSolution};

// One thread of a program.
class Worker {
 public:
  Worker(const Gpu& gpu, uint64_t seed, bool may_fork) : gpu_(gpu), random_(seed) {
    may_fork_ = may_fork;
  }

  void run(int operations) {
    gpu_.enter();
    if (has_faults()) cuda().simcuda_seed_thread(random_.next());
    enter_place();
    for (int i = 0; i < operations; ++i) operate();
    while (places_.size() > 1) leave_place();
    while (!replayables_.empty()) end_replayable(0);
    while (!owners_.empty()) unload(0);
    HOST(cuStreamDestroy_v2, place().stream);
  }

  const Ran& ran() const { return ran_; }
  const Counts& counts() const { return counts_; }
  const Failures& failures() const { return failures_; }

 private:
  // --- the objects of the thread

  std::vector<Handle> usable() const {
    std::vector<Handle> all;
    for (const Handle& handle : handles_) {
      if (handle.place == -1 || handle.place == place().id) all.push_back(handle);
    }
    return all;
  }

  const Place& place() const { return places_.back(); }
  int random_shape() { return kShapes[random_.below(4)]; }
  int random_value() { return random_.one_in(8) ? kRefusedValue : 100 + random_.below(1000); }

  std::unique_ptr<Arguments> arguments_of(const Handle& handle, int shape, int value) {
    const bool is_other = handle.kernel == Kernel::other || handle.kernel == Kernel::other_step;
    return is_other ? std::make_unique<Arguments>(Arguments::Other{}, gpu_.marks(), value)
                    : std::make_unique<Arguments>(gpu_.marks(), shape, value);
  }

  void note(const Effect& effect) {
    add(&counts_, effect.counts);
    add(&ran_, effect.ran);
  }

  // --- faults

  // Returns the effect of a launch. `launch`: the driver's record of it, or null if it did not run.
  // `expected`: its effect without faults.
  Effect judge(const Effect& expected, const Attempt& made, Kernel kernel, int shape, int value,
               const SimcudaLaunch* launch) {
    if (!has_faults()) return expected;
    CHECK((made.result == CUDA_SUCCESS) == (launch != nullptr));
    // A launch is refused only once its solution is known, so the same faults may make it fail.
    const bool has_solution = expected.counts.hit + expected.counts.refused != 0;
    const bool may_fail = has_solution && is_strict();
    Effect effect;
    if (made.result != CUDA_SUCCESS) {
      if (made.struck.fault != 0) {
        EXPECT_EQUAL(made.struck.fault, made.result);
        ++failures_.unknown;
        effect.counts.untracked = 1;  // or an error: see Failures
      } else {
        if (!may_fail || cuda().simcuda_has_struck(made.result) != 1) {
          fail(__FILE__, __LINE__,
               std::string("a launch of ") + name_of(kernel) + ", shape " + std::to_string(shape) +
                   ", value " + std::to_string(value) + ", returns " +
                   std::to_string(static_cast<int>(made.result)) + " after " +
                   std::to_string(made.struck.own_faults) + " faults");
        }
        ++failures_.own;
        effect.counts.error = 1;
      }
      return effect;
    }
    const bool is_original = strcmp(launch->kernel, name_of(kernel)) == 0;
    const bool is_first_image = kernel == Kernel::step || kernel == Kernel::free;
    EXPECT_EQUAL(value, value_in(*launch, is_original && is_first_image));
    if (expected.counts.hit == 0 || is_original) {
      CHECK(is_original);
      // The substitution was lost because of a fault, which the host must not see.
      CHECK(expected.counts.hit == 0 || cuda().simcuda_has_struck(0) == 1 ||
            made.struck.fault != 0 || is_swapping());
      CHECK(made.struck.fault == 0 || (expected.counts.hit != 0 && !is_strict()));
      effect.ran = original_ran(kernel);
      effect.counts = expected.counts.hit == 0 ? expected.counts : Counts{.untracked = 1};
      return effect;
    }
    CHECK(launch->kernel == "curated_n" + std::to_string(shape));
    EXPECT_EQUAL(0, made.struck.fault);
    return expected;
  }

  static Ran original_ran(Kernel kernel) {
    return effect_of(kernel, kNoSolution, kRefusedValue, Way::legacy).ran;
  }

  uint64_t last_sequence() const {
    SimcudaLaunch last;
    return has_faults() && cuda().simcuda_last_launch_of_thread(&last) == 1 ? last.sequence : 0;
  }

  // --- operations

  void operate() {
    const int kind = random_.below(100);
    if (owners_.empty() || kind < 12) return load();
    if (handles_.empty() || kind < 28) return look_up(random_.pick(owners_));
    if (kind < 62) return launch_some();
    if (kind < 69) return capture();
    if (kind < 76) return build_graph();
    if (kind < 86) return replay();
    if (kind < 94) return unload(random_.below(static_cast<int>(owners_.size())));
    if (kind < 98)
      return places_.size() < 3 && random_.one_in(2) ? enter_new_place() : leave_place();
    if (may_fork_) fork_one();
  }

  void load() {
    Owner owner = {next_id_++, nullptr, nullptr, random_.one_in(3), -1};
    const char* name = owner.is_other ? kOther : kImage;
    const void* bytes = image(name).data();
    const std::string path = data_path(name);
    Attempt made;
    switch (random_.below(6)) {
      case 0: made = ATTEMPT(cuModuleLoadData, &owner.module, bytes); break;
      case 1: made = ATTEMPT(cuModuleLoad, &owner.module, path.c_str()); break;
      case 2: made = ATTEMPT(cuModuleLoadDataEx, &owner.module, bytes, 0, nullptr, nullptr); break;
      case 3: made = ATTEMPT(cuModuleLoadFatBinary, &owner.module, bytes); break;
      case 4:
        made = ATTEMPT(cuLibraryLoadData, &owner.library, bytes, nullptr, nullptr, 0, nullptr,
                       nullptr, 0);
        break;
      default:
        made = ATTEMPT(cuLibraryLoadFromFile, &owner.library, path.c_str(), nullptr, nullptr, 0,
                       nullptr, nullptr, 0);
        break;
    }
    if (made.result != CUDA_SUCCESS) {
      // Out of memory, or another fault: the host gives up.
      EXPECT_EQUAL(made.struck.fault, made.result);
      return;
    }
    if (owner.module != nullptr) owner.place = place().id;
    owners_.push_back(owner);
    look_up(owners_.back());
  }

  void look_up(const Owner& owner) {
    if (owner.place != -1 && owner.place != place().id && random_.one_in(2)) return;
    const bool is_first = random_.below(3) != 0;
    const Kernel kernel = owner.is_other ? (is_first ? Kernel::other_step : Kernel::other)
                                         : (is_first ? Kernel::step : Kernel::free);
    const char* name = is_first ? kStep : owner.is_other ? "conform_other" : kFree;
    Handle handle = {nullptr, kernel, false, owner.id, owner.place};
    if (owner.module != nullptr) {
      HOST(cuModuleGetFunction, &handle.function, owner.module, name);
    } else {
      CUkernel found = nullptr;
      CUmodule module = nullptr;
      const int how = random_.below(4);
      if (how == 3) {
        HOST(cuLibraryGetModule, &module, owner.library);
        HOST(cuModuleGetFunction, &handle.function, module, name);
        handle.place = place().id;
      } else {
        HOST(cuLibraryGetKernel, &found, owner.library, name);
        if (how == 2) {
          HOST(cuKernelGetFunction, &handle.function, found);
          handle.place = place().id;
        } else {
          handle.function = reinterpret_cast<CUfunction>(found);
          handle.is_kernel = true;
        }
      }
    }
    handles_.push_back(handle);
  }

  void launch_some() {
    for (int i = 1 + random_.below(4); i > 0; --i) {
      std::vector<Handle> all = usable();
      if (all.empty()) return look_up(random_.pick(owners_));
      launch(random_.pick(all), true);
    }
  }

  // `runs`: it runs now; otherwise it becomes a node. Returns what was launched, and its effect.
  Launched launch(const Handle& handle, bool runs) {
    const int shape = random_shape();
    const int value = random_value();
    const auto arguments = arguments_of(handle, shape, value);
    const CUfunction function = handle.function;
    const CUstream stream = place().stream;
    const bool is_packed = random_.one_in(4);
    void** params = is_packed ? nullptr : arguments->params();
    void** extra = is_packed ? arguments->extra() : nullptr;
    Way way = Way::launch;
    CUlaunchConfig config = launch_config(stream);
    CUlaunchAttribute attribute = programmatic();
    config.attrs = &attribute;
    config.numAttrs = random_.one_in(2) ? 1 : 0;
    // The oldest launch calls accept no CUkernel, and a real driver does not capture them.
    const uint64_t before = last_sequence();
    Attempt made;
    switch (random_.below(handle.is_kernel || !runs ? 6 : 7)) {
      case 0:
        made = ATTEMPT(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, params, extra);
        break;
      case 1:
        made = ATTEMPT(cuLaunchKernel_ptsz, function, 1, 1, 1, 32, 1, 1, 0, stream, params, extra);
        break;
      case 2: made = ATTEMPT(cuLaunchKernelEx, &config, function, params, extra); break;
      case 3: made = ATTEMPT(cuLaunchKernelEx_ptsz, &config, function, params, extra); break;
      case 4:
        made = ATTEMPT(cuLaunchCooperativeKernel, function, 1, 1, 1, 32, 1, 1, 0, stream,
                       arguments->params());
        break;
      case 5:
        made = ATTEMPT(cuLaunchCooperativeKernel_ptsz, function, 1, 1, 1, 32, 1, 1, 0, stream,
                       arguments->params());
        break;
      default:
        way = Way::legacy;
        HOST(cuFuncSetBlockShape, function, 32, 1, 1);
        HOST(cuParamSetSize, function, 16);
        HOST(cuParamSetv, function, 0, arguments->packed(), 16);
        made = ATTEMPT(cuLaunchGridAsync, function, 1, 1, stream);
        break;
    }
    const Effect expected = effect_of(handle.kernel, shape, value, way);
    Launched launched = {handle.kernel, shape, value, expected, made.result == CUDA_SUCCESS};
    // In a capture nothing runs yet, and nothing is counted.
    if (!runs) {
      if (!launched.is_there) EXPECT_EQUAL(made.struck.fault, made.result);
      return launched;
    }
    SimcudaLaunch last;
    const bool has_run = has_faults() && last_sequence() != before &&
                         cuda().simcuda_last_launch_of_thread(&last) == 1;
    launched.effect = judge(expected, made, handle.kernel, shape, value, has_run ? &last : nullptr);
    note(launched.effect);
    return launched;
  }

  void capture() {
    std::vector<Handle> all = usable();
    if (all.empty()) return;
    Replayable made = {nullptr, nullptr, {}, false, {}, place().id, nullptr, {}};
    HOST(cuStreamBeginCapture_v2, place().stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 1 + random_.below(4); i > 0; --i) {
      const Handle& handle = random_.pick(all);
      const Launched one = launch(handle, false);
      if (!one.is_there) continue;
      made.nodes.push_back(one);
      made.owners.push_back(handle.owner);
    }
    CUgraph graph = nullptr;
    HOST(cuStreamEndCapture, place().stream, &graph);
    if (random_.one_in(3)) graph = copy(graph);
    if (random_.one_in(2)) read_and_set(graph, made.nodes);
    const bool is_made = instantiate(graph, &made);
    (void)FOR_GRAPH(cuGraphDestroy, graph);
    if (is_made) replayables_.push_back(made);
  }

  // Instantiates the graph, which counts its nodes. Returns false if that fails because of a fault.
  bool instantiate(CUgraph graph, Replayable* made) {
    if (!FOR_GRAPH(cuGraphInstantiateWithFlags, &made->executable, graph, 0).is_done()) {
      return false;
    }
    made->is_kept = true;
    for (const Launched& one : made->nodes) {
      // With faults, nodes are not compared: see conform_run.h.
      if (!has_faults()) add(&counts_, one.effect.counts);
    }
    return true;
  }

  std::vector<CUgraphNode> nodes_of(CUgraph graph) {
    size_t count = 0;
    HOST(cuGraphGetNodes, graph, nullptr, &count);
    std::vector<CUgraphNode> nodes(count);
    if (count != 0) HOST(cuGraphGetNodes, graph, nodes.data(), &count);
    return nodes;
  }

  // Replaces the graph by a clone of it.
  CUgraph copy(CUgraph graph) {
    CUgraph clone = nullptr;
    HOST(cuGraphClone, &clone, graph);
    HOST(cuGraphDestroy, graph);
    return clone;
  }

  // Expects the host's own params in the nodes, which are in the order of the launches. Sets some
  // again unchanged.
  void read_and_set(CUgraph graph, const std::vector<Launched>& launched) {
    const std::vector<CUgraphNode> nodes = nodes_of(graph);
    EXPECT_EQUAL(launched.size(), nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      NodeParams2 params;
      HOST(cuGraphKernelNodeGetParams_v2, nodes[i], &params);
      const Launched& one = launched[i];
      CHECK(kernel_name(params) == name_of(one.kernel));
      if (one.kernel == Kernel::step) {
        EXPECT_EQUAL(one.shape, shape_of(params));
        EXPECT_EQUAL(one.value, value_of(params));
      }
      if (random_.one_in(2)) HOST(cuGraphKernelNodeSetParams_v2, nodes[i], &params);
    }
  }

  // Adds a node of its own to the graph.
  Launched add_node(CUgraph graph, const Handle& handle, int shape, int value, CUgraphNode* node) {
    const auto arguments = arguments_of(handle, shape, value);
    if (handle.is_kernel) {
      const NodeParams2 params =
          node_params2(reinterpret_cast<CUkernel>(handle.function), arguments.get());
      HOST(cuGraphAddKernelNode_v2, node, graph, nullptr, 0, &params);
    } else {
      const NodeParams1 params1 = node_params1(handle.function, arguments.get());
      const NodeParams2 params2 = node_params2(handle.function, arguments.get());
      CUgraphNodeParams params = node_params(handle.function, arguments.get());
      switch (random_.below(4)) {
        case 0: HOST(cuGraphAddKernelNode, node, graph, nullptr, 0, &params1); break;
        case 1: HOST(cuGraphAddKernelNode_v2, node, graph, nullptr, 0, &params2); break;
        case 2: HOST(cuGraphAddNode, node, graph, nullptr, 0, &params); break;
        default: HOST(cuGraphAddNode_v2, node, graph, nullptr, nullptr, 0, &params); break;
      }
    }
    return launched_as(handle.kernel, shape, value);
  }

  static Launched launched_as(Kernel kernel, int shape, int value) {
    return {kernel, shape, value, effect_of(kernel, shape, value, Way::launch), true};
  }

  // Builds a graph of one node and keeps it, so that its instance may be set later.
  void build_graph() {
    std::vector<Handle> all = usable();
    if (all.empty()) return;
    const Handle handle = random_.pick(all);
    Replayable made = {nullptr, nullptr, {}, false, {handle.owner}, place().id, nullptr, handle};
    HOST(cuGraphCreate, &made.graph, 0);
    made.nodes.push_back(add_node(made.graph, handle, random_shape(), random_value(), &made.node));
    if (random_.one_in(3)) set_node(&made, nullptr);
    if (random_.one_in(3)) {
      made.graph = copy(made.graph);
      made.node = nodes_of(made.graph).at(0);
      if (random_.one_in(2)) set_node(&made, nullptr);
    }
    if (instantiate(made.graph, &made)) {
      replayables_.push_back(made);
    } else {
      (void)FOR_GRAPH(cuGraphDestroy, made.graph);
    }
  }

  // Sets other arguments for a graph's only node (`executable` is null), or in its instance.
  void set_node(Replayable* one, CUgraphExec executable) {
    const int shape = random_shape();
    const int value = random_value();
    const auto arguments = arguments_of(one->handle, shape, value);
    const NodeParams2 params =
        one->handle.is_kernel
            ? node_params2(reinterpret_cast<CUkernel>(one->handle.function), arguments.get())
            : node_params2(one->handle.function, arguments.get());
    if (executable == nullptr) {
      HOST(cuGraphKernelNodeSetParams_v2, one->node, &params);
    } else {
      const Attempt set =
          FOR_GRAPH(cuGraphExecKernelNodeSetParams_v2, executable, one->node, &params);
      if (!set.is_done()) return;
      if (set.hides_a_fault()) one->has_lost_copy = true;
    }
    one->nodes[0] = launched_as(one->handle.kernel, shape, value);
    if (executable != nullptr && !one->is_kept) {
      one->nodes[0].effect.ran = original_ran(one->handle.kernel);
    }
  }

  void replay() {
    for (Replayable& one : replayables_) {
      if (one.place != place().id || random_.one_in(2)) continue;
      if (one.node != nullptr) {
        if (random_.one_in(3) && !one.is_updated) set_node(&one, one.executable);
        if (random_.one_in(4)) update(&one);
      }
      const int times = 1 + random_.below(3);
      for (int i = 0; i < times; ++i) {
        const uint64_t before = last_sequence();
        const Attempt launched = FOR_GRAPH(cuGraphLaunch, one.executable, place().stream);
        if (launched.hides_a_fault()) one.has_lost_copy = true;
        if (has_faults()) {
          add_replayed(one, before);
        } else {
          for (const Launched& node : one.nodes) add(&ran_, node.effect.ran);
        }
      }
    }
  }

  // With faults: adds what one replay has run, which is each node's kernel or its replacement.
  void add_replayed(const Replayable& one, uint64_t before) {
    std::vector<SimcudaLaunch> launches(one.nodes.size() + 1);
    launches.resize(cuda().simcuda_launches_of_thread(before, launches.data(), launches.size()));
    EXPECT_EQUAL(one.nodes.size(), launches.size());
    std::vector<Launched> left = one.nodes;
    for (const SimcudaLaunch& launch : launches) {
      const auto is_of = [&launch](const Launched& node) {
        const bool is_original = strcmp(launch.kernel, name_of(node.kernel)) == 0;
        const bool is_first = node.kernel == Kernel::step || node.kernel == Kernel::free;
        const bool is_replacement = node.effect.counts.hit != 0 &&
                                    launch.kernel == "curated_n" + std::to_string(node.shape);
        return (is_original || is_replacement) &&
               value_in(launch, is_original && is_first) == node.value;
      };
      const auto at = std::find_if(left.begin(), left.end(), is_of);
      CHECK(at != left.end());
      const bool is_original = strcmp(launch.kernel, name_of(at->kernel)) == 0;
      // A replacement may be lost only because of a fault or a swap.
      CHECK(!is_original || at->effect.counts.hit == 0 || !one.is_kept || one.has_lost_copy ||
            cuda().simcuda_has_struck(0) == 1 || is_swapping());
      if (is_original) {
        add(&ran_, original_ran(at->kernel));
      } else {
        add_curated(&ran_, at->shape);
      }
      left.erase(at);
    }
  }

  // Updates the instance from another graph with one node.
  void update(Replayable* one) {
    CUgraph graph = nullptr;
    HOST(cuGraphCreate, &graph, 0);
    CUgraphNode node = nullptr;
    const Launched next = add_node(graph, one->handle, random_shape(), random_value(), &node);
    auto info = zeroed<CUgraphExecUpdateResultInfo>();
    if (FOR_GRAPH(cuGraphExecUpdate_v2, one->executable, graph, &info).is_done()) {
      one->nodes[0] = next;
      one->has_lost_copy = false;
      one->is_kept = next.effect.counts.hit != 0;
      one->is_updated = true;
    }
    (void)FOR_GRAPH(cuGraphDestroy, graph);
  }

  void end_replayable(size_t index) {
    const Replayable& one = replayables_[index];
    (void)FOR_GRAPH(cuGraphExecDestroy, one.executable);
    if (one.graph != nullptr) (void)FOR_GRAPH(cuGraphDestroy, one.graph);
    replayables_.erase(replayables_.begin() + static_cast<ptrdiff_t>(index));
  }

  // Unloads an owner, after the graphs whose nodes may use its kernels.
  void unload(int index) {
    const Owner owner = owners_[static_cast<size_t>(index)];
    if (owner.place != -1 && owner.place != place().id) return;
    for (size_t i = replayables_.size(); i-- > 0;) {
      for (const int used : replayables_[i].owners) {
        if (used != owner.id) continue;
        end_replayable(i);
        break;
      }
    }
    std::erase_if(handles_, [&](const Handle& handle) { return handle.owner == owner.id; });
    if (owner.module != nullptr) {
      HOST(cuModuleUnload, owner.module);
    } else {
      HOST(cuLibraryUnload, owner.library);
    }
    owners_.erase(owners_.begin() + index);
  }

  // --- contexts

  void enter_place() {
    Place made = {next_id_++, nullptr, nullptr};
    HOST(cuCtxGetCurrent, &made.context);
    HOST(cuStreamCreate, &made.stream, CU_STREAM_NON_BLOCKING);
    places_.push_back(made);
  }

  void enter_new_place() {
    CUcontext context = nullptr;
    HOST(cuCtxCreate_v2, &context, 0, gpu_.device());
    enter_place();
  }

  // Ends the newest context, with everything in it.
  void leave_place() {
    if (places_.size() == 1) return;
    const Place left = place();
    for (size_t i = replayables_.size(); i-- > 0;) {
      if (replayables_[i].place == left.id) end_replayable(i);
    }
    std::erase_if(handles_, [&](const Handle& handle) { return handle.place == left.id; });
    std::erase_if(owners_, [&](const Owner& owner) { return owner.place == left.id; });
    HOST(cuCtxDestroy_v2, left.context);
    places_.pop_back();
    HOST(cuCtxSetCurrent, place().context);
  }

  // --- processes

  // The child may not use CUDA, but its shim must neither hang nor write into the parent's
  // counters. The shim may have forgotten a CUfunction with some context, and cannot ask the driver
  // any more: only CUkernels are certain to be counted correctly.
  void fork_one() {
    // And with different GPUs the driver would have to say which one this launch is for.
    int devices = 0;
    HOST(cuDeviceGetCount, &devices);
    std::vector<Handle> all;
    for (const Handle& handle : handles_) {
      if (handle.is_kernel && (devices == 1 || handle.kernel != Kernel::step)) {
        all.push_back(handle);
      }
    }
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      end_child_under_sanitizers();
      if (has_faults()) _exit(0);  // the effect of its launches is unknown
      Counts counts;
      for (int i = 0; i < 3 && !all.empty(); ++i) {
        const Handle& handle = random_.pick(all);
        const int shape = random_shape();
        const int value = random_value();
        const auto arguments = arguments_of(handle, shape, value);
        EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED,
                    cuda().cuLaunchKernel(handle.function, 1, 1, 1, 32, 1, 1, 0, nullptr,
                                          arguments->params(), nullptr));
        Effect effect = effect_of(handle.kernel, shape, value, Way::launch);
        effect.counts.error = effect.counts.hit;
        effect.counts.hit = 0;
        add(&counts, effect.counts);
      }
      if (!owners_.empty() && owners_[0].module != nullptr) {
        EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuModuleUnload(owners_[0].module));
      }
      state({}, counts);
      _exit(0);
    }
    expect_exit(child);
  }

  const Gpu& gpu_;
  Random random_;
  bool may_fork_;
  int next_id_ = 1;
  std::vector<Place> places_;
  std::vector<Owner> owners_;
  std::vector<Handle> handles_;
  std::vector<Replayable> replayables_;
  Ran ran_;
  Counts counts_;
  Failures failures_;
};

}  // namespace conform
