// A random program of one graph, as data: its nodes, and what its host does with it. It is made
// from a seed alone and has no races: nodes that access the same bytes are ordered if one of them
// writes. So every order that the edges permit writes the same results, and whatever runs in the
// graph's place must, too.
//
// Its nodes are kernels of graph_kernels.cu, fills, copies and child graphs. Half of them follow a
// rewrite pattern of graphs_config, mostly exactly. This code does not know which instances may be
// rewritten.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace conform {

// Memory of a graph, in words. Only the graph reads the words from kScratch on, so patterns may
// call them dead.
constexpr int kLiveWords = 512;
constexpr int kScratchWords = 1024;
// Half of the memory's alignment, in words; graphs_config/patterns relies on it.
constexpr int kScratch = 1 << 17;
constexpr int kAlignment = 8 * kScratch;

enum class StepKind { kernel, fill, copy, child, empty, host };

// A node. `in`, `with` and `out` are places in memory.
struct Step {
  StepKind kind = StepKind::kernel;
  char letter = 'z';
  int in = 0, with = 0, out = 0, words = 64;
  int salt = 0;               // a fill's value
  std::vector<int> after;     // indexes of the steps that it depends on
  std::vector<Step> body;     // for a child graph, each after the one before
  bool begins_early = false;  // its edge from the kernel before it is programmatic
  int priority = 0;           // of a kernel that is not captured
  bool has_cluster = false;   // of one block; likewise
};

enum class OpKind {
  launch,
  set,
  enable,
  disable,
  update,
  swap,
  end_graph,
  instantiate,
  rate,
  other
};

// An operation of the host. set: changes a node's parameters, or its child graph; update: changes
// those of some nodes by cuGraphExecUpdate; rate: requests that 1 of so many launches is checked,
// 0: none; other: goes on with another exec of the graph, and later with the one before.
struct Op {
  OpKind kind;
  int step = 0;
  int stream = 0;
  std::vector<Step> steps;  // for set: one step; for update: all
  int way = 0;              // selects one of several calls
};

struct Program {
  std::vector<Step> steps;
  std::vector<Op> ops;
  bool is_captured = false;
  // 0 or 1: the last step is in the body of a conditional node whose condition is false or true.
  int condition = -1;
  bool has_memory_node = false;
};

Program make_program(uint64_t seed);

// Returns the program without some of its steps and operations, to find a smaller one that fails,
// too.
Program shrink(const Program& program, const std::vector<int>& without_steps,
               const std::vector<int>& without_ops);

// Returns one line for each step and operation.
std::string describe(const Program& program);

}  // namespace conform
