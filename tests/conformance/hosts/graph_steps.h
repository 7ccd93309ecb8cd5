// The nodes of a program's steps (graph_program.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/conformance/hosts/graph_program.h"
#include "tests/conformance/hosts/graphs.h"

namespace conform {

// The kernels of a module that stays loaded.
struct Kernels {
  std::array<CUfunction, 128> by_letter{};

  explicit Kernels(const Gpu& gpu) {
    const CUmodule module = gpu.load_module("graphs.fatbin");
    for (const char letter : std::string("abcdefghz")) {
      by_letter[static_cast<size_t>(letter)] =
          gpu.function(module, (std::string("graph_") + letter).c_str());
    }
  }
  CUfunction of(const Step& step) const { return by_letter[static_cast<size_t>(step.letter)]; }
};

// The arguments of a kernel of graph_kernels.cu. Not movable, since the pointers point into it.
struct StepArguments {
  CUdeviceptr in, with, out;
  int32_t words, salt;
  void* pointers[5] = {&in, &with, &out, &words, &salt};
  char packed[32];
  size_t packed_bytes = sizeof packed;
  void* extra[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                    &packed_bytes, CU_LAUNCH_PARAM_END};

  StepArguments(CUdeviceptr base, const Step& step)
      : in(base + 4 * static_cast<CUdeviceptr>(step.in)),
        with(base + 4 * static_cast<CUdeviceptr>(step.with)),
        out(base + 4 * static_cast<CUdeviceptr>(step.out)),
        words(step.words),
        salt(step.salt) {
    memcpy(packed, &in, 8);
    memcpy(packed + 8, &with, 8);
    memcpy(packed + 16, &out, 8);
    memcpy(packed + 24, &words, 4);
    memcpy(packed + 28, &salt, 4);
  }
  StepArguments(const StepArguments&) = delete;
  StepArguments& operator=(const StepArguments&) = delete;
};

inline void do_nothing(void*) {}

// `base_`: where the memory of the steps begins.
class StepMaker {
 public:
  CUgraphNode add(CUgraph graph, const Step& step, const std::vector<CUgraphNode>& after) const;
  // The graph of a child's step; the caller destroys it.
  CUgraph make_child(const Step& step) const;
  CUdeviceptr at(int word) const { return base_ + 4 * static_cast<CUdeviceptr>(word); }

  NodeParams2 kernel_params(const Step& step, StepArguments* arguments) const {
    auto params = one_block<NodeParams2>();
    params.func = kernels_.of(step);
    params.blockDimX = 64;
    params.kernelParams = arguments->pointers;
    return params;
  }
  CUDA_MEMSET_NODE_PARAMS fill_params(const Step& step) const {
    CUDA_MEMSET_NODE_PARAMS params = fill_of(at(step.out), static_cast<unsigned>(step.salt));
    params.width = static_cast<size_t>(step.words);
    return params;
  }
  CUDA_MEMCPY3D copy_params(const Step& step) const {
    return copy_of(at(step.out), at(step.in), 4 * static_cast<size_t>(step.words));
  }

 protected:
  StepMaker(const Gpu& gpu, const Kernels& kernels) : gpu_(gpu), kernels_(kernels) {}

  const Gpu& gpu_;
  const Kernels& kernels_;
  CUdeviceptr base_ = 0;

 private:
  static void set_attributes(CUgraphNode node, const Step& step);
};

}  // namespace conform
