// What calls about graphs cost the host, for tests/bench/graph_costs.py, which runs this with the shim and without it:
// `conform graph_costs NODES EXECS`, on a chain of as many kernels, every second of which is replaced; then on one of pairs that are
// rewritten as one (merged_), and one whose kernels begin early (early_). One line for each: a name and a number, in ns where nothing
// else is said.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

constexpr int kRepeats = 25;

template <class Work>
double median_ns(int repeats, int calls, const Work& work) {
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < calls; ++k) work();
    const auto took = std::chrono::steady_clock::now() - begin;
    all.push_back(std::chrono::duration<double, std::nano>(took).count() / calls);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

long trimmed_bytes() {
  malloc_trim(0);
  return resident_bytes();
}

long used_device_bytes() {
  size_t free = 0;
  size_t total = 0;
  OK(cuda().cuMemGetInfo_v2(&free, &total));
  return static_cast<long>(total - free);
}

void say(const std::string& name, double value) { printf("%s %.1f\n", name.c_str(), value); }

// Every second kernel is replaced; one of so many has this value, the others 1.
std::unique_ptr<Graph> make_chain(const Gpu& gpu, CUfunction step, int count, int value,
                                  int period = 1) {
  auto graph = std::make_unique<Graph>();
  CUgraphNode last = nullptr;
  for (int i = 0; i < count; ++i) {
    Arguments arguments(gpu.marks(), i % 2 == 0 ? 1 : kNoSolution, i % period == 0 ? value : 1);
    last = graph->add(step, &arguments, last);
  }
  return graph;
}

CUgraphExec instantiate(const Graph& graph) {
  CUgraphExec made = nullptr;
  OK(cuda().cuGraphInstantiateWithFlags(&made, graph.get(), 0));
  return made;
}

void time_instantiation(const std::string& prefix, const Graph& graph, int nodes) {
  for (int i = 0; i < 3; ++i) OK(cuda().cuGraphExecDestroy(instantiate(graph)));
  std::vector<CUgraphExec> made;
  say(prefix + "instantiate_per_node",
      median_ns(kRepeats, 1, [&] { made.push_back(instantiate(graph)); }) / nodes);
  for (const CUgraphExec exec : made) OK(cuda().cuGraphExecDestroy(exec));
}

// An exec takes over two graphs in turn.
void time_update(const std::string& name, const Graph& graph, const Graph& other, int nodes) {
  const CUgraphExec exec = instantiate(graph);
  const Graph* updated = &other;
  say(name, median_ns(kRepeats, 1, [&] {
              auto info = zeroed<CUgraphExecUpdateResultInfo>();
              OK(cuda().cuGraphExecUpdate_v2(exec, updated->get(), &info));
              updated = updated == &other ? &graph : &other;
            }) / nodes);
  OK(cuda().cuGraphExecDestroy(exec));
}

// One kernel of so many has another value each time.
void time_update(const Gpu& gpu, CUfunction step, int nodes, const char* name, int value,
                 int period) {
  time_update(name, *make_chain(gpu, step, nodes, 1), *make_chain(gpu, step, nodes, value, period),
              nodes);
}

// The first kernel node is set: in an exec that was just made, and again and again.
void time_sets(const std::string& prefix, const Graph& graph, const NodeParams2& params) {
  const CUgraphNode node = graph.nodes().at(0);
  const auto set = [&](CUgraphExec exec) {
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
  };
  std::vector<CUgraphExec> made;
  for (int i = 0; i < kRepeats; ++i) made.push_back(instantiate(graph));
  size_t next = 0;
  say(prefix + "set_params_first", median_ns(kRepeats, 1, [&] { set(made[next++]); }));
  say(prefix + "set_params", median_ns(kRepeats, 200, [&] { set(made[0]); }));
  for (const CUgraphExec exec : made) OK(cuda().cuGraphExecDestroy(exec));
}

void measure_memory(const Gpu& gpu, const std::string& prefix, const Graph& graph, int nodes) {
  const long host_before = trimmed_bytes();
  const long device_before = used_device_bytes();
  std::vector<CUgraphExec> made;
  const int kept = std::max(1, 50'000 / nodes);
  for (int i = 0; i < kept; ++i) made.push_back(instantiate(graph));
  say(prefix + "host_bytes_per_node",
      static_cast<double>(trimmed_bytes() - host_before) / kept / nodes);
  for (const CUgraphExec one : made) OK(cuda().cuGraphUpload(one, gpu.stream()));
  OK(cuda().cuStreamSynchronize(gpu.stream()));
  say(prefix + "device_bytes_per_node",
      static_cast<double>(used_device_bytes() - device_before) / kept / nodes);
  for (const CUgraphExec one : made) OK(cuda().cuGraphExecDestroy(one));
}

// So many are made and destroyed: what is left behind shows after the first tenth.
void measure_growth(const Gpu& gpu, const std::string& prefix, const Graph& graph, int execs) {
  long early = 0;
  for (int i = 0; i < execs; ++i) {
    if (i == execs / 10) early = trimmed_bytes();
    const CUgraphExec one = instantiate(graph);
    if (i % 16 == 0) OK(cuda().cuGraphLaunch(one, gpu.stream()));
    OK(cuda().cuGraphExecDestroy(one));
  }
  OK(cuda().cuStreamSynchronize(gpu.stream()));
  say(prefix + "growth_bytes_per_exec",
      static_cast<double>(trimmed_bytes() - early) / (execs - execs / 10));
}

// Pairs of kernels, each of which a rewrite makes one.
class Pairs {
 public:
  explicit Pairs(const Gpu& gpu) : gpu_(gpu) {
    const CUmodule module = gpu.load_module();
    split_ = gpu.function(module, "conform_split");
    join_ = gpu.function(module, "conform_join");
    for (CUdeviceptr& buffer : buffers_) OK(cuda().cuMemAlloc_v2(&buffer, kCount * sizeof(float)));
  }

  std::unique_ptr<Graph> make_chain(int count, int32_t value) {
    auto graph = std::make_unique<Graph>();
    std::vector<CUgraphNode> last;
    for (int i = 0; i < count; ++i) {
      last = {add_kernel(graph->get(), params(i % 2 == 0 ? 0 : 1, &value), last)};
    }
    return graph;
  }
  // Of the first kernel of a pair, or the second. `value` lasts as long as they do.
  NodeParams2 params(int member, int32_t* value) {
    marks_ = gpu_.marks();
    void** const pointers = pointers_[member];
    pointers[0] = &buffers_[member];
    pointers[1] = &buffers_[member + 1];
    pointers[2] = &marks_;
    pointers[3] = &count_;
    pointers[4] = value;
    auto out = one_block<NodeParams2>();
    out.func = member == 0 ? split_ : join_;
    out.kernelParams = pointers;
    return out;
  }

 private:
  static constexpr int32_t kCount = 64;
  const Gpu& gpu_;
  CUfunction split_, join_;
  CUdeviceptr buffers_[3] = {};
  uint32_t* marks_ = nullptr;
  int32_t count_ = kCount;
  void* pointers_[2][5] = {};
};

// A chain in which so many edges in a row of `period` let the next kernel begin early. Every second kernel has this shape.
std::unique_ptr<Graph> make_early_chain(const Gpu& gpu, CUfunction step, int count, int period,
                                        int early, int shape = kNoSolution, int value = 1) {
  auto graph = std::make_unique<Graph>();
  const CUgraphEdgeData data = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                .to_port = 0,
                                .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC,
                                .reserved = {}};
  CUgraphNode last = nullptr;
  for (int i = 0; i < count; ++i) {
    Arguments arguments(gpu.marks(), i % 2 == 0 ? shape : kNoSolution, value);
    const CUgraphNode node = graph->add(step, &arguments);
    if (last != nullptr) {
      OK(cuda().cuGraphAddDependencies_v2(graph->get(), &last, &node,
                                          i % period < early ? &data : nullptr, 1));
    }
    last = node;
  }
  return graph;
}

// The host's call that launches a graph, while nothing else runs; and until all of it has run.
void time_launches(const Gpu& gpu, CUfunction step, int nodes) {
  struct Row {
    const char* name;
    int period;
    int early;
  };
  constexpr Row kRows[] = {
      {"plain", 1, 0}, {"one_early", 1 << 20, 2}, {"half_early", 2, 1}, {"all_early", 1, 1}};
  for (const Row& row : kRows) {
    const auto graph = make_early_chain(gpu, step, nodes, row.period, row.early);
    const CUgraphExec exec = instantiate(*graph);
    std::vector<double> calls, runs;
    for (int i = 0; i < 4 * kRepeats; ++i) {
      OK(cuda().cuStreamSynchronize(gpu.stream()));
      runs.push_back(median_ns(1, 1, [&] {
        calls.push_back(median_ns(1, 1, [&] { OK(cuda().cuGraphLaunch(exec, gpu.stream())); }));
        OK(cuda().cuStreamSynchronize(gpu.stream()));
      }));
    }
    std::sort(calls.begin(), calls.end());
    std::sort(runs.begin(), runs.end());
    say(std::string("launch_") + row.name, calls[calls.size() / 2]);
    say(std::string("run_") + row.name, runs[runs.size() / 2]);
    OK(cuda().cuGraphExecDestroy(exec));
  }
}

// The calls that the shim itself makes of a host's graph, each of all its kernels.
void time_calls(const Graph& graph, const NodeParams2& params) {
  const auto per_node = [&](const char* name, auto call) {
    say(name, median_ns(kRepeats, 1, [&] {
                for (const CUgraphNode node : graph.nodes()) OK(call(node));
              }) / static_cast<double>(graph.nodes().size()));
  };
  per_node("call_type", [](CUgraphNode node) {
    CUgraphNodeType type;
    return cuda().cuGraphNodeGetType(node, &type);
  });
  per_node("call_get_params", [](CUgraphNode node) {
    auto read = zeroed<NodeParams2>();
    return cuda().cuGraphKernelNodeGetParams_v2(node, &read);
  });
  per_node("call_get_attribute", [](CUgraphNode node) {
    auto value = zeroed<CUlaunchAttributeValue>();
    return cuda().cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
  });
  const size_t count = graph.nodes().size();
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  const auto of_graph = [&](const char* name, auto call) {
    say(name, median_ns(kRepeats, 1, [&] { OK(call()); }) / static_cast<double>(count));
  };
  of_graph("call_get_nodes", [&] {
    size_t room = count;
    return cuda().cuGraphGetNodes(graph.get(), from.data(), &room);
  });
  of_graph("call_get_edges", [&] {
    size_t room = count;
    return cuda().cuGraphGetEdges_v2(graph.get(), from.data(), to.data(), data.data(), &room);
  });
  std::vector<CUgraph> copies;
  say("call_clone", median_ns(kRepeats, 1, [&] {
                      copies.emplace_back();
                      OK(cuda().cuGraphClone(&copies.back(), graph.get()));
                    }) / static_cast<double>(graph.nodes().size()));
  per_node("call_find_in_clone", [&](CUgraphNode node) {
    CUgraphNode found = nullptr;
    return cuda().cuGraphNodeFindInClone(&found, node, copies.front());
  });
  size_t next = 0;
  say("call_destroy", median_ns(kRepeats, 1, [&] { OK(cuda().cuGraphDestroy(copies[next++])); }) /
                          static_cast<double>(graph.nodes().size()));
  per_node("call_copy_attributes", [&](CUgraphNode node) {
    return cuda().cuGraphKernelNodeCopyAttributes(graph.nodes().back(), node);
  });
  per_node("call_set_params",
           [&](CUgraphNode node) { return cuda().cuGraphKernelNodeSetParams_v2(node, &params); });
}

}  // namespace
}  // namespace conform

using namespace conform;

GPU_CASE(graph_costs) {
  const int nodes = atoi(arguments.at(0).c_str());
  const int execs = atoi(arguments.at(1).c_str());
  const CUfunction step = gpu.step();
  const auto graph = make_chain(gpu, step, nodes, 1);
  const auto small = make_chain(gpu, step, 1, 3);
  time_instantiation("", *graph, nodes);
  time_update(gpu, step, nodes, "update_per_node", 2, 1);
  time_update(gpu, step, nodes, "update_of_few_per_node", 2, 16);
  time_update(gpu, step, nodes, "update_of_none_per_node", 1, 1);

  Arguments changed(gpu.marks(), 1, 4);
  const NodeParams2 params = node_params2(step, &changed);
  time_sets("", *graph, params);

  const auto called = make_chain(gpu, step, nodes, 5);
  Arguments original(gpu.marks(), kNoSolution, 5);
  time_calls(*called, node_params2(step, &original));

  time_launches(gpu, gpu.handles().free, nodes);

  const CUgraphExec launched = instantiate(*small);
  // As many as a queue takes, then what it holds is waited for, apart from what is measured.
  std::vector<double> launches;
  for (int i = 0; i < 4 * kRepeats; ++i) {
    OK(cuda().cuStreamSynchronize(gpu.stream()));
    launches.push_back(
        median_ns(1, 100, [&] { OK(cuda().cuGraphLaunch(launched, gpu.stream())); }));
  }
  std::sort(launches.begin(), launches.end());
  say("launch_of_one_node", launches[launches.size() / 2]);
  OK(cuda().cuStreamSynchronize(gpu.stream()));

  measure_memory(gpu, "", *graph, nodes);
  measure_growth(gpu, "", *small, execs);
  OK(cuda().cuGraphExecDestroy(launched));

  // What runs beside the host's own exec: kernels that are one, and edges that a replacement changes.
  Pairs pairs(gpu);
  int32_t other_value = 2;
  const auto merged = pairs.make_chain(nodes, 1);
  const auto early = make_early_chain(gpu, step, nodes, 1, 1, 1);
  const auto time_beside = [&](const std::string& prefix, const Graph& one, const Graph& other,
                               const NodeParams2& set) {
    time_instantiation(prefix, one, nodes);
    time_update(prefix + "update_per_node", one, other, nodes);
    time_sets(prefix, one, set);
    measure_memory(gpu, prefix, one, nodes);
  };
  time_beside("merged_", *merged, *pairs.make_chain(nodes, 2), pairs.params(0, &other_value));
  time_beside("early_", *early, *make_early_chain(gpu, step, nodes, 1, 1, 1, 2), params);
  measure_growth(gpu, "merged_", *pairs.make_chain(2, 1), execs);
}

// So many execs of each kind are made and destroyed; from the first tenth on, memory stays what it is: `conform exec_growth EXECS`.
GPU_CASE(exec_growth) {
  constexpr int kNodes = 4;
  constexpr long kMostHostBytes = 256 << 10;  // what the allocator keeps or gives back
  constexpr long kMostDeviceBytes = 2 << 20;  // the driver's page
  const int execs = atoi(arguments.at(0).c_str());
  const CUfunction step = gpu.step();
  Pairs pairs(gpu);
  Arguments changed(gpu.marks(), 1, 4);
  const NodeParams2 replaced_params = node_params2(step, &changed);
  int32_t other_value = 3;
  const NodeParams2 merged_params = pairs.params(0, &other_value);
  struct Kind {
    const char* name;
    std::unique_ptr<Graph> graph, other;
    const NodeParams2* set;
  };
  Kind kinds[] = {
      {"none", make_early_chain(gpu, step, kNodes, 1, 0),
       make_early_chain(gpu, step, kNodes, 1, 0, kNoSolution, 2), nullptr},
      {"replaced", make_chain(gpu, step, kNodes, 1), make_chain(gpu, step, kNodes, 2),
       &replaced_params},
      {"merged", pairs.make_chain(kNodes, 1), pairs.make_chain(kNodes, 2), &merged_params},
      {"early", make_early_chain(gpu, step, kNodes, 1, 1, 1),
       make_early_chain(gpu, step, kNodes, 1, 1, 1, 2), &replaced_params},
  };
  for (const Kind& kind : kinds) {
    long host_before = 0;
    long device_before = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < execs; ++i) {
      if (i == execs / 10) {
        OK(cuda().cuStreamSynchronize(gpu.stream()));
        host_before = trimmed_bytes();
        device_before = used_device_bytes();
      }
      const CUgraphExec one = instantiate(*kind.graph);
      if (i % 4 == 1) {
        auto info = zeroed<CUgraphExecUpdateResultInfo>();
        OK(cuda().cuGraphExecUpdate_v2(one, kind.other->get(), &info));
      }
      if (i % 4 >= 2 && kind.set != nullptr) {
        OK(cuda().cuGraphExecKernelNodeSetParams_v2(one, kind.graph->nodes().at(0), kind.set));
      }
      if (i % 8 < 4) OK(cuda().cuGraphLaunch(one, gpu.stream()));
      if (i % 256 == 255) OK(cuda().cuStreamSynchronize(gpu.stream()));
      OK(cuda().cuGraphExecDestroy(one));
    }
    OK(cuda().cuStreamSynchronize(gpu.stream()));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    const long host = trimmed_bytes() - host_before;
    const long device = used_device_bytes() - device_before;
    printf("%s: %d execs, %.1f us each; host memory grew by %ld bytes, device memory by %ld\n",
           kind.name, execs, took.count() / execs, host, device);
    CHECK(host <= kMostHostBytes);
    CHECK(device <= kMostDeviceBytes);
  }
}

// What an update asks of the driver where the exec that runs beside the host's follows it, by its number of calls: no graph is
// copied, and nothing is made anew.
GPU_CASE(updates_beside_take_few_calls) {
  constexpr int kPairs = 50;
  Pairs pairs(gpu);
  const CUfunction step = gpu.step();
  struct Row {
    std::unique_ptr<Graph> one, other;
    long sets;
  };
  const Row rows[] = {
      {pairs.make_chain(2 * kPairs, 1), pairs.make_chain(2 * kPairs, 2), kPairs},
      {make_early_chain(gpu, step, 2 * kPairs, 1, 1, 1),
       make_early_chain(gpu, step, 2 * kPairs, 1, 1, 1, 2), 2 * kPairs},
  };
  for (const Row& row : rows) {
    const CUgraphExec exec = instantiate(*row.one);
    const auto update = [&](const Graph& graph) {
      auto info = zeroed<CUgraphExecUpdateResultInfo>();
      OK(cuda().cuGraphExecUpdate_v2(exec, graph.get(), &info));
    };
    update(*row.other);  // also records what the others are compared with
    const std::pair<const char*, long> most[] = {
        {"cuGraphNode*", 0},         {"cuGraphKernelNodeGetParams*", 2 * kPairs},
        {"cuGraphGet*", 2},          {"cuGraphClone", 0},
        {"cuGraphExecUpdate*", 1},   {"cuGraphExecKernelNodeSetParams*", row.sets},
        {"cuGraphKernelNodeSet*", 0}};
    for (const Graph* const graph : {row.one.get(), row.one.get()}) {
      std::vector<long> before;
      for (const auto& [call, count] : most) before.push_back(calls(call));
      update(*graph);
      for (size_t i = 0; i < before.size(); ++i) {
        const long made = calls(most[i].first) - before[i];
        if (made > most[i].second) {
          fail(__FILE__, __LINE__, most[i].first + (": " + std::to_string(made)));
        }
      }
    }
    const long before = calls("cuGraphExecKernelNodeSetParams*");
    update(*row.one);  // changes nothing
    EXPECT_EQUAL(before, calls("cuGraphExecKernelNodeSetParams*"));
    OK(cuda().cuGraphExecDestroy(exec));
  }
  state({}, {.hit = 2 * kPairs, .no_solution = kPairs, .absorbed = kPairs});
}

// Updates alone: `conform update_costs NODES VALUE PERIOD`, where one kernel of so many gets this value, or `conform update_costs NODES
// merged`, `... early`.
GPU_CASE(update_costs) {
  const auto at = [&](size_t i) { return atoi(arguments.at(i).c_str()); };
  const CUfunction step = gpu.step();
  if (arguments.at(1) == "merged") {
    Pairs pairs(gpu);
    time_update("update_per_node", *pairs.make_chain(at(0), 1), *pairs.make_chain(at(0), 2), at(0));
  } else if (arguments.at(1) == "early") {
    time_update("update_per_node", *make_early_chain(gpu, step, at(0), 1, 1, 1),
                *make_early_chain(gpu, step, at(0), 1, 1, 1, 2), at(0));
  } else {
    time_update(gpu, step, at(0), "update_per_node", at(1), at(2));
  }
}

// The driver calls of an instantiation, of updates and of sets, those of the host among them: `conform graph_calls NODES`.
GPU_CASE(graph_calls) {
  const int nodes = atoi(arguments.at(0).c_str());
  const CUfunction step = gpu.step();
  Pairs pairs(gpu);
  Arguments changed(gpu.marks(), 1, 4);
  const NodeParams2 params = node_params2(step, &changed);
  int32_t value = 3;
  const NodeParams2 merged_params = pairs.params(0, &value);
  const auto count = [&](const std::string& what, const auto& work) {
    constexpr const char* kNames[] = {"cuGraphInstantiate*",
                                      "cuGraphClone",
                                      "cuGraphExecUpdate*",
                                      "cuGraphExecKernelNodeSetParams*",
                                      "cuGraphGetNodes",
                                      "cuGraphGetEdges*",
                                      "cuGraphNodeGetType",
                                      "cuGraphNodeGetDepend*",
                                      "cuGraphNodeFindInClone",
                                      "cuGraphKernelNodeGetParams*",
                                      "cuGraphKernelNodeGetAttribute",
                                      "cuGraphKernelNodeSetParams*",
                                      "cuGraphDestroyNode",
                                      "cuGraphRemoveDependencies*",
                                      "cuGraphAddDependencies*",
                                      "cuGraphDestroy",
                                      "*"};
    std::vector<long> before;
    for (const char* const name : kNames) before.push_back(calls(name));
    work();
    printf("%s:", what.c_str());
    for (size_t i = 0; i < before.size(); ++i) {
      const long made = calls(kNames[i]) - before[i];
      if (made != 0) printf(" %s %ld", kNames[i], made);
    }
    printf("\n");
  };
  struct Kind {
    const char* name;
    std::unique_ptr<Graph> graph, other;
    const NodeParams2* set;
  };
  const Kind kinds[] = {
      {"one for one", make_chain(gpu, step, nodes, 1), make_chain(gpu, step, nodes, 2), &params},
      {"merged", pairs.make_chain(nodes, 1), pairs.make_chain(nodes, 2), &merged_params},
      {"early", make_early_chain(gpu, step, nodes, 1, 1, 1),
       make_early_chain(gpu, step, nodes, 1, 1, 1, 2), &params},
  };
  for (const Kind& kind : kinds) {
    const std::string name = kind.name;
    OK(cuda().cuGraphExecDestroy(instantiate(*kind.graph)));
    CUgraphExec exec = nullptr;
    count(name + ", instantiation", [&] { exec = instantiate(*kind.graph); });
    const Graph* updated = kind.other.get();
    for (const char* const which : {", first update", ", update"}) {
      count(name + which, [&] {
        auto info = zeroed<CUgraphExecUpdateResultInfo>();
        OK(cuda().cuGraphExecUpdate_v2(exec, updated->get(), &info));
      });
      updated = kind.graph.get();
    }
    OK(cuda().cuGraphExecDestroy(exec));
    exec = instantiate(*kind.graph);
    const CUgraphNode node = kind.graph->nodes().at(0);
    count(name + ", set",
          [&] { OK(cuda().cuGraphExecKernelNodeSetParams_v2(exec, node, kind.set)); });
    OK(cuda().cuGraphExecDestroy(exec));
  }
}
