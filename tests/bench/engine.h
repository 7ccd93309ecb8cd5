// The driver as an engine reaches it: opens libcuda.so.1 by name and gets its functions from dlsym,
// so that a preloaded library is between the two. Works with the simulated driver or a real one:
// the kernels do nothing.
//
// A failing call ends the process with a message, so a benchmark never measures something else.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>
#include <vector>

namespace fibshim::bench {

struct Cuda {
  PFN_cuInit_v2000 init;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_primary;
  PFN_cuCtxSetCurrent_v4000 set_current;
  PFN_cuStreamCreate_v2000 create_stream;
  PFN_cuStreamSynchronize_v2000 synchronize;
  PFN_cuLibraryLoadData_v12000 load_library;
  PFN_cuLibraryUnload_v12000 unload_library;
  PFN_cuLibraryGetKernel_v12000 get_kernel;
  PFN_cuModuleLoadData_v2000 load_module;
  PFN_cuModuleUnload_v2000 unload_module;
  PFN_cuModuleGetFunction_v2000 get_function;
  PFN_cuGraphCreate_v10000 create_graph;
  PFN_cuGraphAddKernelNode_v12000 add_kernel_node;
  PFN_cuGraphInstantiateWithFlags_v11040 instantiate;
  PFN_cuGraphLaunch_v10000 launch_graph;
  PFN_cuLaunchKernel_v4000 launch;         // from dlsym: a preload's, if there is one
  PFN_cuLaunchKernelEx_v11060 launch_ex;   // the same
  PFN_cuLaunchKernel_v4000 direct_launch;  // the driver's own, past any preload
};

// The first call opens the driver and makes a context. Later calls may come from any thread.
const Cuda& cuda();

// Ends the process if the call failed.
void require(CUresult result, const char* call);

// Makes the context current for the calling thread, and a stream of its own.
CUstream start_thread();

// An image of build/bench/images: "launches", "many_kernels".
const std::string& image(const std::string& name);

// Each call loads the image anew and returns a new handle: a CUkernel, which the CUDA runtime
// launches, or a CUfunction, which Triton, JAX and CuPy launch.
CUfunction load_kernel(const std::string& image_name, const char* kernel);
CUfunction load_function(const std::string& image_name, const char* kernel);

// The names of the kernels in many_kernels, each a C string.
const std::vector<std::string>& many_kernel_names();

// The eight arguments of every kernel of launches.cu, and their addresses.
class Arguments {
 public:
  Arguments() = default;
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void set_columns(int columns) { columns_ = columns; }
  void** params() { return params_; }

 private:
  int columns_ = 4096;
  float eps_ = 1e-6f;
  CUdeviceptr hidden_states_ = 0x7f0000000000;
  CUdeviceptr weight_ = 0x7f0000100000;
  CUdeviceptr output_ = 0x7f0000200000;
  CUdeviceptr rstd_ = 0x7f0000300000;
  int rows_ = 64;
  float scale_ = 1.0f;
  void* params_[8] = {&columns_, &eps_,  &hidden_states_, &weight_,
                      &output_,  &rstd_, &rows_,          &scale_};
};

inline CUresult launch(PFN_cuLaunchKernel_v4000 function, CUfunction kernel, CUstream stream,
                       Arguments& arguments) {
  return function(kernel, 64, 1, 1, 128, 1, 1, 0, stream, arguments.params(), nullptr);
}

// A matrix product as cuBLAS launches it: one packed struct, and clusters. The kernel is
// bench_packed; the bench folder has a pattern for the product.
class PackedLaunch {
 public:
  explicit PackedLaunch(CUstream stream);
  PackedLaunch(const PackedLaunch&) = delete;
  PackedLaunch& operator=(const PackedLaunch&) = delete;

  CUresult operator()(CUfunction kernel) { return launch_(&config_, kernel, nullptr, extra_); }

 private:
  PFN_cuLaunchKernelEx_v11060 launch_ = cuda().launch_ex;
  char bytes_[1720] = {};
  size_t size_ = sizeof bytes_;
  void* extra_[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes_, CU_LAUNCH_PARAM_BUFFER_SIZE, &size_,
                     CU_LAUNCH_PARAM_END};
  CUlaunchAttribute cluster_ = {};
  CUlaunchConfig config_;
};

}  // namespace fibshim::bench
