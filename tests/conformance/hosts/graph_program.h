// A random program of one graph, as data: its nodes, and what its host does with it. Made from a seed alone, and
// without races: whatever touches the same bytes, and writes them, is ordered. So every order that the edges permit
// writes the same, and whatever runs in the graph's place must, too.
//
// Its nodes are kernels of graph_kernels.cu, fills and copies, and child graphs. Half of them follow a rewrite pattern
// of graphs_config, most often to the letter; which instances are legal is nobody's knowledge here.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace conform {

// Memory of a graph, in words. What lies behind kScratch nobody reads but the graph: patterns may call it dead.
constexpr int kLiveWords = 512;
constexpr int kScratchWords = 1024;
constexpr int kScratch =
    1 << 17;  // the words in half of what it is aligned to: graphs_config/patterns
constexpr int kAlignment = 8 * kScratch;

enum class StepKind { kernel, fill, copy, child, empty, host };

// A node. `in`, `with` and `out` are places in memory.
struct Step {
  StepKind kind = StepKind::kernel;
  char letter = 'z';
  int in = 0, with = 0, out = 0, words = 64;
  int salt = 0;               // a fill's value
  std::vector<int> after;     // by their places among the steps
  std::vector<Step> body;     // of a child graph, each after the one before
  bool begins_early = false;  // its edge from the kernel before it is programmatic
};

enum class OpKind { launch, set, enable, disable, update, swap, end_graph, instantiate, rate };

// What the host does. set: a node's parameters; update: those of some nodes, by cuGraphExecUpdate; rate: has 1 of so many
// launches checked, 0: none.
struct Op {
  OpKind kind;
  int step = 0;
  int stream = 0;
  std::vector<Step> steps;  // set: the one; update: all
  int way = 0;              // which of several calls
};

struct Program {
  std::vector<Step> steps;
  std::vector<Op> ops;
  bool is_captured = false;
  int condition =
      -1;  // 0, 1: the last step is in the body of a conditional node that is false, true
  bool has_memory_node = false;
};

Program make_program(uint64_t seed);

// The same without some of its steps and operations, for a smaller one that fails, too.
Program shrink(const Program& program, const std::vector<int>& without_steps,
               const std::vector<int>& without_ops);

// One line for each step and operation.
std::string describe(const Program& program);

}  // namespace conform
