// Random programs of graphs (graph_program.h). `conform graphs SEED COUNT [FOLDERS]` runs COUNT
// programs in up to three threads, and prints a sum of what each wrote. This must not depend on the
// shim, nor on the order in which the simulated driver runs unordered nodes (SIMCUDA_ORDER). At the
// end it prints how many nodes were instantiated, and how many kernels were to run. FOLDERS
// contains the config folders that it moves between.
//
// `conform graph SEED INDEX STEPS OPS [FOLDERS]` runs one program without those steps and
// operations (3,5 or -), and prints it.

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/conformance/hosts/control.h"
#include "tests/conformance/hosts/graph_steps.h"
#include "tests/conformance/hosts/random.h"

namespace conform {
namespace {

constexpr int kThreads = 3;
constexpr const char* kFolders[] = {"a", "b", "c"};

// The required values of the counters.
struct Totals {
  long nodes = 0, executions = 0, body_nodes = 0, body_runs = 0;
};

// Calls `ask(control)` with the one control block of the process.
void ask_shim(const std::function<void(Control*)>& ask) {
  static std::mutex lock;
  const std::lock_guard guard(lock);
  if (!is_shim_active()) return;
  static Control* const control = new Control;
  ask(control);
}

const char* getenv_or_empty(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

// One thread's memory and streams. Runs programs in them, one after the other.
class GraphRunner : private StepMaker {
 public:
  GraphRunner(const Gpu& gpu, const Kernels& kernels, const std::string& folders)
      : StepMaker(gpu, kernels), folders_(folders) {
    gpu.enter();
    OK(cuda().cuMemAlloc_v2(&allocated_, 2 * kAlignment));
    base_ = (allocated_ + kAlignment - 1) / kAlignment * kAlignment;
    for (int i = 0; i < 2; ++i) OK(cuda().cuStreamCreate(&streams_[i], CU_STREAM_NON_BLOCKING));
    streams_[2] = CU_STREAM_PER_THREAD;
    for (CUevent& event : events_) OK(cuda().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  }
  ~GraphRunner() {
    for (CUevent event : events_) OK(cuda().cuEventDestroy_v2(event));
    for (int i = 0; i < 2; ++i) OK(cuda().cuStreamDestroy_v2(streams_[i]));
    OK(cuda().cuMemFree_v2(allocated_));
  }
  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;

  // Returns a hash of everything that it wrote, taken after each launch that was waited for.
  uint64_t run(const Program& program, uint64_t seed) {
    Random random(seed);
    hash_ = 0xcbf29ce484222325u;
    refresh(&random);
    steps_ = first_steps_ = program.steps;
    condition_ = program.condition;
    has_memory_node_ = program.has_memory_node;
    launches_ = 0;
    // A graph that the driver cannot copy keeps what it was instantiated with.
    can_change_rate_ =
        has_rates_ && !(is_wrong_ && (program.condition >= 0 || program.has_memory_node));
    const int interval = random.below(3);
    if (has_rates_ && totals_.nodes == 0) {
      interval_ = 0;  // the shim takes no requests before something was counted
    } else if (has_rates_) {
      check_one_of(can_change_rate_ ? interval : 1);
    }
    if (program.is_captured) {
      capture(program);
    } else {
      build();
    }
    instantiate(static_cast<int>(seed % 3));
    for (const Op& op : program.ops) operate(op, &random);
    synchronize(&random);
    OK(cuda().cuGraphExecDestroy(exec_));
    if (other_) OK(cuda().cuGraphExecDestroy(other_->exec));
    other_.reset();
    end_graph();
    return hash_;
  }

  const Totals& totals() const { return totals_; }

 private:
  void write(int words, int from, uint64_t seed) {
    Random random(seed);
    std::vector<uint32_t> all(static_cast<size_t>(words));
    for (uint32_t& word : all) word = static_cast<uint32_t>(random.next());
    OK(cuda().cuMemcpyHtoD_v2(at(from), all.data(), 4 * all.size()));
    // The copy may return before it is done, and the streams do not wait for it.
    OK(cuda().cuStreamSynchronize(CU_STREAM_LEGACY));
  }

  void refresh(Random* random) {
    write(kLiveWords, 0, random->next());
    write(kScratchWords, kScratch, random->next());
  }

  // Waits, hashes the live words, and overwrites the scratch words, which nothing else may read.
  void synchronize(Random* random) {
    for (const CUstream stream : streams_) OK(cuda().cuStreamSynchronize(stream));
    uint32_t all[kLiveWords];
    OK(cuda().cuMemcpyDtoH_v2(all, at(0), sizeof all));
    // If replacements are wrong, the result is only known if the originals ran.
    const bool is_known = !is_wrong_ || interval_ == 1;
    for (const uint32_t word : all) hash_ = is_known ? (hash_ ^ word) * 0x100000001b3u : hash_;
    write(kScratchWords, kScratch, random->next());
  }

  // --- nodes

  std::vector<CUgraphNode> nodes_before(const Step& step) const {
    std::vector<CUgraphNode> all;
    for (const int one : step.after) all.push_back(nodes_[static_cast<size_t>(one)]);
    return all;
  }

  void build() {
    OK(cuda().cuGraphCreate(&graph_, 0));
    nodes_.clear();
    is_enabled_.assign(steps_.size(), true);
    for (size_t i = 0; i < steps_.size(); ++i) {
      const bool is_body = condition_ >= 0 && i + 1 == steps_.size();
      nodes_.push_back(is_body ? add_in_body(steps_[i])
                               : add(graph_, steps_[i], nodes_before(steps_[i])));
    }
    if (has_memory_node_) (void)add_memory_nodes(gpu_, graph_);
  }

  CUgraphNode add_in_body(const Step& step) const {
    const Conditional made = add_conditional(gpu_, graph_, condition_ != 0, nodes_before(step));
    (void)add(made.body, step, {});
    return made.node;
  }

  // Captures into two streams; the salt selects the stream.
  void capture(const Program& program) {
    nodes_.clear();
    is_enabled_.assign(program.steps.size(), true);
    std::vector<int> stream_of;
    OK(cuda().cuStreamBeginCapture_v2(streams_[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuda().cuEventRecord(events_[0], streams_[0]));
    bool has_second = false;
    const auto wait = [&](int on, int stream) {
      OK(cuda().cuEventRecord(events_[1], streams_[on]));
      OK(cuda().cuStreamWaitEvent(streams_[stream], events_[1], 0));
    };
    for (const Step& step : program.steps) {
      const int stream = step.salt & 1;
      if (stream == 1 && !has_second) {
        OK(cuda().cuStreamWaitEvent(streams_[1], events_[0], 0));
        has_second = true;
      }
      for (const int one : step.after) {
        if (stream_of[static_cast<size_t>(one)] == stream) continue;
        wait(1 - stream, stream);
        break;
      }
      launch_captured(step, streams_[stream]);
      stream_of.push_back(stream);
      CUstreamCaptureStatus status;
      const CUgraphNode* last = nullptr;
      size_t count = 0;
      OK(cuda().cuStreamGetCaptureInfo_v2(streams_[stream], &status, nullptr, nullptr, &last,
                                          &count));
      CHECK(count == 1);
      nodes_.push_back(last[0]);
    }
    if (has_second) wait(1, 0);
    OK(cuda().cuStreamEndCapture(streams_[0], &graph_));
  }

  void launch_captured(const Step& step, CUstream stream) const {
    switch (step.kind) {
      case StepKind::kernel: {
        StepArguments arguments(base_, step);
        const bool is_packed = step.salt % 4 == 0;
        OK(cuda().cuLaunchKernel(kernels_.of(step), 1, 1, 1, 64, 1, 1, 0, stream,
                                 is_packed ? nullptr : arguments.pointers,
                                 is_packed ? arguments.extra : nullptr));
        break;
      }
      case StepKind::fill:
        OK(cuda().cuMemsetD32Async(at(step.out), static_cast<unsigned>(step.salt),
                                   static_cast<size_t>(step.words), stream));
        break;
      case StepKind::copy:
        OK(cuda().cuMemcpyDtoDAsync_v2(at(step.out), at(step.in),
                                       4 * static_cast<size_t>(step.words), stream));
        break;
      default: OK(cuda().cuLaunchHostFunc(stream, do_nothing, nullptr));
    }
  }

  // --- operations

  static bool is_switchable(const Step& step) {
    return step.kind == StepKind::kernel || step.kind == StepKind::fill ||
           step.kind == StepKind::copy;
  }
  bool is_in_body(size_t step) const { return condition_ >= 0 && step + 1 == steps_.size(); }

  // Counts all kernel nodes, or those that are enabled.
  long count_kernels(bool all) const {
    long count = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      if (is_in_body(i)) continue;
      if (step.kind == StepKind::kernel && (all || is_enabled_[i])) ++count;
      if (step.kind == StepKind::child) count += static_cast<long>(step.body.size());
    }
    return count;
  }

  void instantiate(int way) {
    if (way == 0) {
      OK(cuda().cuGraphInstantiate_v2(&exec_, graph_, nullptr, nullptr, 0));
    } else if (way == 1) {
      OK(cuda().cuGraphInstantiateWithFlags(&exec_, graph_, 0));
    } else {
      auto params = zeroed<CUDA_GRAPH_INSTANTIATE_PARAMS>();
      OK(cuda().cuGraphInstantiateWithParams(&exec_, graph_, &params));
    }
    is_enabled_.assign(steps_.size(), true);
    totals_.nodes += count_kernels(true);
    if (condition_ >= 0) ++totals_.body_nodes;
  }

  void end_graph() {
    if (graph_ != nullptr) OK(cuda().cuGraphDestroy(graph_));
    graph_ = nullptr;
  }

  void launch(int stream) {
    OK(cuda().cuGraphLaunch(exec_, streams_[stream]));
    totals_.executions += count_kernels(false);
    if (condition_ == 1) ++totals_.body_runs;
  }

  void operate(const Op& op, Random* random) {
    const auto index = static_cast<size_t>(op.step);
    Random spoiler(random->next());
    // The next launch may read the scratch words of the last one only if the nodes are the same.
    if (op.kind != OpKind::launch) synchronize(&spoiler);
    switch (op.kind) {
      case OpKind::launch:
        launch(op.stream);
        if (op.way != 0) synchronize(&spoiler);
        // Checks are prepared in the background, while the graph is launched.
        if (!has_checks_ || ++launches_ % 3 != 1) break;
        for (int i = 0; i < 4; ++i) {
          usleep(25'000);
          launch((op.stream + i) % 3);
        }
        if (op.way != 0) synchronize(&spoiler);
        break;
      case OpKind::set: return set(index, op.steps[0], op.way);
      case OpKind::enable:
      case OpKind::disable:
        if (graph_ == nullptr || !is_switchable(steps_[index]) || is_in_body(index)) return;
        is_enabled_[index] = op.kind == OpKind::enable;
        OK(cuda().cuGraphNodeSetEnabled(exec_, nodes_[index], is_enabled_[index] ? 1 : 0));
        break;
      case OpKind::update: return update(op);
      case OpKind::swap:
        if (!folders_.empty()) {
          ask_shim(
              [&](Control* control) { control->must_move(folders_ + "/" + kFolders[op.way % 3]); });
        }
        break;
      case OpKind::end_graph: end_graph(); break;
      case OpKind::instantiate:
        if (graph_ == nullptr) return;
        OK(cuda().cuGraphExecDestroy(exec_));
        steps_ = first_steps_;
        instantiate(op.way % 3);
        break;
      case OpKind::other: return go_on_with_the_other(op.way % 3);
      case OpKind::rate:
        if (can_change_rate_) check_one_of(op.way);
        if (is_wrong_ && interval_ == 1) refresh(&spoiler);
        break;
    }
  }

  // Another exec of the same graph, which is made the first time.
  void go_on_with_the_other(int way) {
    if (graph_ == nullptr && !other_) return;
    Other now = {exec_, steps_, is_enabled_};
    if (other_) {
      exec_ = other_->exec;
      steps_ = other_->steps;
      is_enabled_ = other_->is_enabled;
    } else {
      steps_ = first_steps_;
      instantiate(way);
    }
    other_ = std::move(now);
  }

  void check_one_of(int interval) {
    interval_ = interval;
    ask_shim([&](Control* control) { control->must_check(static_cast<uint32_t>(interval)); });
  }

  void set(size_t index, const Step& step, int way) {
    if (graph_ == nullptr) return;
    const CUgraphNode node = nodes_[index];
    if (step.kind == StepKind::child) {
      CUgraph const child = make_child(step);
      auto params = zeroed<CUgraphNodeParams>();
      params.type = CU_GRAPH_NODE_TYPE_GRAPH;
      params.graph.graph = child;
      OK(way % 2 == 0 ? cuda().cuGraphExecChildGraphNodeSetParams(exec_, node, child)
                      : cuda().cuGraphExecNodeSetParams(exec_, node, &params));
      OK(cuda().cuGraphDestroy(child));
    } else if (step.kind == StepKind::fill) {
      const CUDA_MEMSET_NODE_PARAMS params = fill_params(step);
      OK(cuda().cuGraphExecMemsetNodeSetParams(exec_, node, &params, gpu_.context()));
    } else if (step.kind == StepKind::copy) {
      // Keep the direction of the copy, which is explicit if it was captured.
      CUDA_MEMCPY3D params;
      OK(cuda().cuGraphMemcpyNodeGetParams(node, &params));
      params.srcDevice = at(step.in);
      params.dstDevice = at(step.out);
      OK(cuda().cuGraphExecMemcpyNodeSetParams(exec_, node, &params, gpu_.context()));
    } else {
      StepArguments arguments(base_, step);
      NodeParams2 params = kernel_params(step, &arguments);
      if (way == 3) {
        params.kernelParams = nullptr;
        params.extra = arguments.extra;
      }
      if (way == 0) {
        NodeParams1 narrow;
        memcpy(&narrow, &params, sizeof narrow);
        OK(cuda().cuGraphExecKernelNodeSetParams(exec_, node, &narrow));
      } else if (way == 1) {
        auto any = zeroed<CUgraphNodeParams>();
        any.type = CU_GRAPH_NODE_TYPE_KERNEL;
        memcpy(&any.kernel, &params, sizeof params);
        OK(cuda().cuGraphExecNodeSetParams(exec_, node, &any));
      } else {
        OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec_, node, &params));
      }
    }
  }

  // Updates the exec from another graph. It is still set by the nodes of the graph that it was made
  // from.
  void update(const Op& op) {
    const CUgraph own = graph_;
    const std::vector<CUgraphNode> own_nodes = nodes_;
    const std::vector<bool> was_enabled = is_enabled_;
    steps_ = op.steps;
    build();
    is_enabled_ = was_enabled;
    auto info = zeroed<CUgraphExecUpdateResultInfo>();
    OK(cuda().cuGraphExecUpdate_v2(exec_, graph_, &info));
    OK(cuda().cuGraphDestroy(graph_));
    graph_ = own;
    nodes_ = own_nodes;
  }

  // An exec that the graph has besides, and what the host has made of it.
  struct Other {
    CUgraphExec exec;
    std::vector<Step> steps;
    std::vector<bool> is_enabled;
  };

  std::string folders_;
  CUdeviceptr allocated_ = 0;
  CUstream streams_[3] = {};
  CUevent events_[2] = {};
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  std::optional<Other> other_;
  std::vector<Step> steps_;
  std::vector<Step> first_steps_;  // those of the graph itself
  std::vector<CUgraphNode> nodes_;
  std::vector<bool> is_enabled_;
  int condition_ = -1;
  bool has_memory_node_ = false;
  uint64_t hash_ = 0;
  long launches_ = 0;
  const bool has_checks_ = strncmp(getenv_or_empty("FIBSHIM_SHADOW"), "1/", 2) == 0 ||
                           *getenv_or_empty("GRAPHS_RATES") != 0;
  // GRAPHS_RATES: programs change how many launches are checked.
  const bool has_rates_ = *getenv_or_empty("GRAPHS_RATES") != 0;
  // GRAPHS_WRONG: replacements compute something else.
  const bool is_wrong_ = *getenv_or_empty("GRAPHS_WRONG") != 0;
  bool can_change_rate_ = false;
  int interval_ = 1;
  Totals totals_;
};

uint64_t seed_of(uint64_t seed, uint64_t index) { return seed << 24 | index; }

// Expects that all graphs and execs are gone, and waits for those that the shim's own thread is
// about to end.
void expect_nothing_left() {
  if (!cuda().is_simulated) return;
  for (int i = 0; cuda().simcuda_live_count("graph_exec") + cuda().simcuda_live_count("graph") != 0;
       ++i) {
    if (i == 2000) fail(__FILE__, __LINE__, "graphs are left");
    usleep(10'000);
  }
  EXPECT_EQUAL(0, cuda().simcuda_stale_launch_count());
}

void say(const Totals& totals) {
  printf("nodes %ld\nexecutions %ld\nbody_nodes %ld\nbody_runs %ld\n", totals.nodes,
         totals.executions, totals.body_nodes, totals.body_runs);
  if (!cuda().is_simulated) return;
  for (const char* name :
       {"graph_a", "graph_b", "graph_c", "graph_d", "graph_e", "graph_f", "graph_g", "graph_h",
        "graph_z", "curated_a", "curated_c", "curated_f", "curated_ab", "curated_abc", "curated_cd",
        "curated_de", "curated_efgh", "curated_gh", "curated_b8"}) {
    printf("%s %lu\n", name, static_cast<unsigned long>(cuda().simcuda_launch_count(name)));
  }
}

std::vector<int> read_list(const std::string& text) {
  std::vector<int> all;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    if (word != "-") all.push_back(atoi(word.c_str()));
  }
  return all;
}

}  // namespace
}  // namespace conform

using namespace conform;

CASE(graphs) {
  const uint64_t seed = strtoull(arguments.at(0).c_str(), nullptr, 10);
  const auto count = static_cast<uint64_t>(atoi(arguments.at(1).c_str()));
  const std::string folders = arguments.size() > 2 ? arguments[2] : "";
  const Gpu gpu;
  const Kernels kernels(gpu);
  std::vector<uint64_t> sums(count);
  Totals totals;
  std::mutex lock;
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  // With several threads, one would not know the rate that another has requested.
  const bool is_alone =
      *getenv_or_empty("GRAPHS_RATES") != 0 && *getenv_or_empty("GRAPHS_WRONG") != 0;
  for (uint64_t i = 0; i <= (is_alone ? 0 : seed % kThreads); ++i) {
    threads.emplace_back([&] {
      GraphRunner runner(gpu, kernels, folders);
      for (uint64_t index; (index = next++) < count;) {
        sums[index] = runner.run(make_program(seed_of(seed, index)), seed_of(seed, index));
      }
      const std::lock_guard guard(lock);
      totals.nodes += runner.totals().nodes;
      totals.executions += runner.totals().executions;
      totals.body_nodes += runner.totals().body_nodes;
      totals.body_runs += runner.totals().body_runs;
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_nothing_left();
  for (uint64_t i = 0; i < count; ++i) {
    printf("graph %lu %016lx\n", static_cast<unsigned long>(i),
           static_cast<unsigned long>(sums[i]));
  }
  say(totals);
}

CASE(graph) {
  const uint64_t seed = seed_of(strtoull(arguments.at(0).c_str(), nullptr, 10),
                                strtoull(arguments.at(1).c_str(), nullptr, 10));
  const std::string folders = arguments.size() > 4 ? arguments[4] : "";
  const Gpu gpu;
  const Kernels kernels(gpu);
  const Program whole = make_program(seed);
  const Program program = shrink(whole, read_list(arguments.at(2)), read_list(arguments.at(3)));
  Totals totals;
  {
    GraphRunner runner(gpu, kernels, folders);
    printf("graph 0 %016lx\n", static_cast<unsigned long>(runner.run(program, seed)));
    totals = runner.totals();
  }
  expect_nothing_left();
  say(totals);
  printf("steps %zu\nops %zu\n%s", whole.steps.size(), whole.ops.size(), describe(program).c_str());
}
