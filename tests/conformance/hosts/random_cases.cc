// Random programs: `conform random SEED` makes, from the seed alone, a few processes with a few
// threads each, which load, look up, launch, capture, build graphs, replay, fork, unload and end
// contexts in any order. What the simulated driver says it ran is the truth: every launch of a
// tracked shape ran that shape's curated kernel, every other one ran its original, none went to a
// dead handle. And each process states what its counters must say.
//
// A thread uses only handles of its own, so a program is right however its threads interleave. But
// the handles' values wander between threads: the driver gives a dead one out at once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // From 0 to `count` - 1.
  int below(int count) { return static_cast<int>(next() % static_cast<uint64_t>(count)); }
  bool one_in(int count) { return below(count) == 0; }
  template <class T>
  T& pick(std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int>(all.size())))];
  }

 private:
  uint64_t state_;
};

enum class Kernel { step, free, other_step, other };

struct Handle {
  CUfunction function;  // or a CUkernel
  Kernel kernel;
  bool is_kernel;  // a CUkernel
  int owner;       // module or library
  int place;       // the context that it lives in; -1: any
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

// What one launch must lead to.
struct Effect {
  Ran ran;
  Counts counts;
};

void add(Ran* to, const Ran& more, long times = 1) {
  to->step += more.step * times;
  to->free += more.free * times;
  to->other += more.other * times;
  to->curated1 += more.curated1 * times;
  to->curated2 += more.curated2 * times;
  to->curated3 += more.curated3 * times;
}

void add(Counts* to, const Counts& more) {
  to->hit += more.hit;
  to->no_solution += more.no_solution;
  to->where += more.where;
  to->refused += more.refused;
  to->error += more.error;
  to->untracked += more.untracked;
}

// How a launch may be made.
enum class Way { launch, legacy, node, executable_node };

Effect effect_of(Kernel kernel, int shape, int value, Way way) {
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
      } else if (shape == 3 && way == Way::executable_node) {
        effect.counts.refused = 1;  // an executable node keeps the cluster that it has
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

// A launch that became a node, and what it runs.
struct Launched {
  Kernel kernel;
  int shape;
  int value;
  Ran ran;
};

// An executable graph, and what one replay of it runs.
struct Replayable {
  CUgraph graph;  // null: only captured
  CUgraphExec executable;
  Ran ran;
  std::vector<int> owners;
  int place;
  // Of a graph with one node: that node, and the kernel that it was made with.
  CUgraphNode node;
  Handle handle;
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
    enter_place();
    for (int i = 0; i < operations; ++i) operate();
    while (places_.size() > 1) leave_place();
    while (!replayables_.empty()) end_replayable(0);
    while (!owners_.empty()) unload(0);
    OK(cuda().cuStreamDestroy_v2(place().stream));
  }

  const Ran& ran() const { return ran_; }
  const Counts& counts() const { return counts_; }

 private:
  // --- what there is

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

  void note(const Effect& effect, bool runs = true) {
    add(&counts_, effect.counts);
    if (runs) add(&ran_, effect.ran);
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
    switch (random_.below(6)) {
      case 0: OK(cuda().cuModuleLoadData(&owner.module, bytes)); break;
      case 1: OK(cuda().cuModuleLoad(&owner.module, path.c_str())); break;
      case 2: OK(cuda().cuModuleLoadDataEx(&owner.module, bytes, 0, nullptr, nullptr)); break;
      case 3: OK(cuda().cuModuleLoadFatBinary(&owner.module, bytes)); break;
      case 4:
        OK(cuda().cuLibraryLoadData(&owner.library, bytes, nullptr, nullptr, 0, nullptr, nullptr,
                                    0));
        break;
      default:
        OK(cuda().cuLibraryLoadFromFile(&owner.library, path.c_str(), nullptr, nullptr, 0, nullptr,
                                        nullptr, 0));
        break;
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
      OK(cuda().cuModuleGetFunction(&handle.function, owner.module, name));
    } else {
      CUkernel found = nullptr;
      CUmodule module = nullptr;
      const int how = random_.below(4);
      if (how == 3) {
        OK(cuda().cuLibraryGetModule(&module, owner.library));
        OK(cuda().cuModuleGetFunction(&handle.function, module, name));
        handle.place = place().id;
      } else {
        OK(cuda().cuLibraryGetKernel(&found, owner.library, name));
        if (how == 2) {
          OK(cuda().cuKernelGetFunction(&handle.function, found));
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

  // `runs`: now; else it becomes a node. Returns what was launched, and what that runs.
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
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 32;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = random_.one_in(2) ? 1 : 0;
    // The oldest calls know no CUkernel, and a real driver does not capture them.
    switch (random_.below(handle.is_kernel || !runs ? 6 : 7)) {
      case 0:
        OK(cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, extra));
        break;
      case 1:
        OK(cuda().cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, stream, params, extra));
        break;
      case 2: OK(cuda().cuLaunchKernelEx(&config, function, params, extra)); break;
      case 3: OK(cuda().cuLaunchKernelEx_ptsz(&config, function, params, extra)); break;
      case 4:
        OK(cuda().cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, stream,
                                            arguments->params()));
        break;
      case 5:
        OK(cuda().cuLaunchCooperativeKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, stream,
                                                 arguments->params()));
        break;
      default:
        way = Way::legacy;
        OK(cuda().cuFuncSetBlockShape(function, 32, 1, 1));
        OK(cuda().cuParamSetSize(function, 16));
        OK(cuda().cuParamSetv(function, 0, arguments->packed(), 16));
        OK(cuda().cuLaunchGridAsync(function, 1, 1, stream));
        break;
    }
    const Effect effect = effect_of(handle.kernel, shape, value, way);
    note(effect, runs);
    return {handle.kernel, shape, value, effect.ran};
  }

  void capture() {
    std::vector<Handle> all = usable();
    if (all.empty()) return;
    Replayable made = {nullptr, nullptr, {}, {}, place().id, nullptr, {}};
    OK(cuda().cuStreamBeginCapture_v2(place().stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    std::vector<Launched> launched;
    for (int i = 1 + random_.below(4); i > 0; --i) {
      const Handle& handle = random_.pick(all);
      launched.push_back(launch(handle, false));
      made.owners.push_back(handle.owner);
    }
    CUgraph graph = nullptr;
    OK(cuda().cuStreamEndCapture(place().stream, &graph));
    if (random_.one_in(3)) graph = copy(graph);
    if (random_.one_in(2)) read_and_set(graph, &launched);
    OK(cuda().cuGraphInstantiateWithFlags(&made.executable, graph, 0));
    OK(cuda().cuGraphDestroy(graph));
    for (const Launched& one : launched) add(&made.ran, one.ran);
    replayables_.push_back(made);
  }

  // The graph as a clone of itself.
  CUgraph copy(CUgraph graph) {
    CUgraph clone = nullptr;
    OK(cuda().cuGraphClone(&clone, graph));
    OK(cuda().cuGraphDestroy(graph));
    return clone;
  }

  // Nodes read back are the host's own; some are set again, which is a launch made anew. They are in
  // the order of the launches.
  void read_and_set(CUgraph graph, std::vector<Launched>* launched) {
    size_t count = 0;
    OK(cuda().cuGraphGetNodes(graph, nullptr, &count));
    EXPECT_EQUAL(launched->size(), count);
    std::vector<CUgraphNode> nodes(count);
    OK(cuda().cuGraphGetNodes(graph, nodes.data(), &count));
    for (size_t i = 0; i < count; ++i) {
      NodeParams2 params;
      OK(cuda().cuGraphKernelNodeGetParams_v2(nodes[i], &params));
      Launched& one = (*launched)[i];
      const bool is_step = one.kernel == Kernel::step || one.kernel == Kernel::other_step;
      CHECK(kernel_name(params) == (is_step                      ? kStep
                                    : one.kernel == Kernel::free ? kFree
                                                                 : "conform_other"));
      if (one.kernel == Kernel::step) {
        EXPECT_EQUAL(one.shape, shape_of(params));
        EXPECT_EQUAL(one.value, value_of(params));
      }
      if (random_.one_in(2)) continue;
      OK(cuda().cuGraphKernelNodeSetParams_v2(nodes[i], &params));
      const Effect effect = effect_of(one.kernel, one.shape, one.value, Way::node);
      note(effect, false);
      one.ran = effect.ran;
    }
  }

  CUgraphNode add_node(CUgraph graph, const Handle& handle, Arguments* arguments) {
    CUgraphNode node = nullptr;
    if (handle.is_kernel) {
      const NodeParams2 params =
          node_params2(reinterpret_cast<CUkernel>(handle.function), arguments);
      OK(cuda().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
      return node;
    }
    switch (random_.below(4)) {
      case 0: {
        const NodeParams1 params = node_params1(handle.function, arguments);
        OK(cuda().cuGraphAddKernelNode(&node, graph, nullptr, 0, &params));
        break;
      }
      case 1: {
        const NodeParams2 params = node_params2(handle.function, arguments);
        OK(cuda().cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params));
        break;
      }
      case 2: {
        CUgraphNodeParams params = node_params(handle.function, arguments);
        OK(cuda().cuGraphAddNode(&node, graph, nullptr, 0, &params));
        break;
      }
      default: {
        CUgraphNodeParams params = node_params(handle.function, arguments);
        OK(cuda().cuGraphAddNode_v2(&node, graph, nullptr, nullptr, 0, &params));
        break;
      }
    }
    return node;
  }

  // A graph of one node, kept, so that its instance may be set later.
  void build_graph() {
    std::vector<Handle> all = usable();
    if (all.empty()) return;
    const Handle handle = random_.pick(all);
    Replayable made = {nullptr, nullptr, {}, {handle.owner}, place().id, nullptr, handle};
    OK(cuda().cuGraphCreate(&made.graph, 0));
    const int shape = random_shape();
    const int value = random_value();
    const auto arguments = arguments_of(handle, shape, value);
    made.node = add_node(made.graph, handle, arguments.get());
    Effect effect = effect_of(handle.kernel, shape, value, Way::node);
    note(effect, false);
    if (random_.one_in(3)) {
      NodeParams2 params;
      OK(cuda().cuGraphKernelNodeGetParams_v2(made.node, &params));
      OK(cuda().cuGraphKernelNodeSetParams_v2(made.node, &params));
      note(effect, false);
    }
    if (random_.one_in(3)) effect = set_node(made, Way::node);
    if (random_.one_in(3)) {
      made.graph = copy(made.graph);
      size_t count = 1;
      OK(cuda().cuGraphGetNodes(made.graph, &made.node, &count));
      if (random_.one_in(2)) effect = set_node(made, Way::node);
    }
    OK(cuda().cuGraphInstantiateWithFlags(&made.executable, made.graph, 0));
    made.ran = effect.ran;
    replayables_.push_back(made);
  }

  // Other arguments for a graph's one node, or its instance's.
  Effect set_node(const Replayable& one, Way way) {
    const int shape = random_shape();
    const int value = random_value();
    const auto arguments = arguments_of(one.handle, shape, value);
    const NodeParams2 params =
        one.handle.is_kernel
            ? node_params2(reinterpret_cast<CUkernel>(one.handle.function), arguments.get())
            : node_params2(one.handle.function, arguments.get());
    if (way == Way::node) {
      OK(cuda().cuGraphKernelNodeSetParams_v2(one.node, &params));
    } else {
      OK(cuda().cuGraphExecKernelNodeSetParams_v2(one.executable, one.node, &params));
    }
    const Effect effect = effect_of(one.handle.kernel, shape, value, way);
    note(effect, false);
    return effect;
  }

  void replay() {
    for (Replayable& one : replayables_) {
      if (one.place != place().id || random_.one_in(2)) continue;
      const bool has_cluster = one.ran.curated3 != 0;
      if (one.node != nullptr && !has_cluster) {
        if (random_.one_in(3)) one.ran = set_node(one, Way::executable_node).ran;
        if (random_.one_in(4)) one.ran = update(one).ran;
      }
      const int times = 1 + random_.below(3);
      for (int i = 0; i < times; ++i) OK(cuda().cuGraphLaunch(one.executable, place().stream));
      add(&ran_, one.ran, times);
    }
  }

  // The instance takes over another graph's one node, which has no cluster either.
  Effect update(const Replayable& one) {
    CUgraph graph = nullptr;
    OK(cuda().cuGraphCreate(&graph, 0));
    const int shape = 1 + random_.below(2);
    const int value = random_value();
    const auto arguments = arguments_of(one.handle, shape, value);
    (void)add_node(graph, one.handle, arguments.get());
    const Effect effect = effect_of(one.handle.kernel, shape, value, Way::node);
    note(effect, false);
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    OK(cuda().cuGraphExecUpdate_v2(one.executable, graph, &info));
    OK(cuda().cuGraphDestroy(graph));
    return effect;
  }

  void end_replayable(size_t index) {
    const Replayable& one = replayables_[index];
    OK(cuda().cuGraphExecDestroy(one.executable));
    if (one.graph != nullptr) OK(cuda().cuGraphDestroy(one.graph));
    replayables_.erase(replayables_.begin() + static_cast<ptrdiff_t>(index));
  }

  // Graphs first, whose nodes may hold its kernels.
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
    forget_handles([&](const Handle& handle) { return handle.owner == owner.id; });
    if (owner.module != nullptr) {
      OK(cuda().cuModuleUnload(owner.module));
    } else {
      OK(cuda().cuLibraryUnload(owner.library));
    }
    owners_.erase(owners_.begin() + index);
  }

  template <class Is>
  void forget_handles(Is is) {
    for (size_t i = handles_.size(); i-- > 0;) {
      if (is(handles_[i])) handles_.erase(handles_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  // --- contexts

  void enter_place() {
    Place made = {next_id_++, nullptr, nullptr};
    OK(cuda().cuCtxGetCurrent(&made.context));
    OK(cuda().cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING));
    places_.push_back(made);
  }

  void enter_new_place() {
    CUcontext context = nullptr;
    OK(cuda().cuCtxCreate_v2(&context, 0, gpu_.device()));
    enter_place();
  }

  // The newest context ends, with all that lives in it.
  void leave_place() {
    if (places_.size() == 1) return;
    const Place left = place();
    for (size_t i = replayables_.size(); i-- > 0;) {
      if (replayables_[i].place == left.id) end_replayable(i);
    }
    forget_handles([&](const Handle& handle) { return handle.place == left.id; });
    for (size_t i = owners_.size(); i-- > 0;) {
      if (owners_[i].place == left.id) owners_.erase(owners_.begin() + static_cast<ptrdiff_t>(i));
    }
    OK(cuda().cuCtxDestroy_v2(left.context));
    places_.pop_back();
    OK(cuda().cuCtxSetCurrent(place().context));
  }

  // --- processes

  // The child may not use CUDA, but has a shim that must neither hang nor write into the parent's
  // counters. What it knows of a CUfunction may have been forgotten with some context, and cannot be
  // asked of the driver any more: only CUkernels are surely counted for what they are.
  void fork_one() {
    // And with unlike GPUs the driver would have to say which one this launch is for.
    int devices = 0;
    OK(cuda().cuDeviceGetCount(&devices));
    std::vector<Handle> all;
    for (const Handle& handle : handles_) {
      if (handle.is_kernel && (devices == 1 || handle.kernel != Kernel::step)) {
        all.push_back(handle);
      }
    }
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
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
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
};

// One process of a program: its threads, and then, alone, what only one thread may do.
void run_process(uint64_t seed) {
  Random random(seed);
  const Gpu gpu;
  std::vector<std::unique_ptr<Worker>> workers;
  const int count = 1 + random.below(4);
  const int operations = 20 + random.below(120);
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(gpu, random.next(), true));
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) {
    threads.emplace_back([&, i] { workers[static_cast<size_t>(i)]->run(operations); });
  }
  workers[0]->run(operations);
  for (std::thread& thread : threads) thread.join();

  Ran ran;
  Counts counts;
  for (const auto& worker : workers) {
    add(&ran, worker->ran());
    add(&counts, worker->counts());
  }
  gpu.expect_ran(ran);
  if (random.one_in(3)) {
    // All over again in a new primary context.
    OK(cuda().cuDevicePrimaryCtxReset_v2(gpu.device()));
    const Gpu again;
    Worker last(again, random.next(), false);
    last.run(operations / 2);
    add(&ran, last.ran());
    add(&counts, last.counts());
    // Marks ended with the context that they were in.
    again.expect_ran(cuda().is_simulated ? ran : last.ran());
  }
  state(ran, counts);
}

}  // namespace
}  // namespace conform

using namespace conform;

CASE(random) {
  const uint64_t seed = strtoull(arguments.at(0).c_str(), nullptr, 10);
  Random random(seed);
  std::vector<pid_t> children;
  for (int i = random.below(3); i > 0; --i) {
    const uint64_t child_seed = random.next();
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      run_process(child_seed);
      fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  run_process(random.next());
  for (const pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fail(__FILE__, __LINE__,
           "a process of the program ended with status " + std::to_string(status));
    }
  }
}
