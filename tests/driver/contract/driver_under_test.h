// The driver under test: whichever libcuda.so.1 the dynamic linker finds first. The same tests run
// against the simulated driver and the real one; they state the facts that the shim relies on. With
// DRIVER_UNDER_TEST=real in the environment the simulated one is refused.
#pragma once

#include <gtest/gtest.h>
#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

#include "tests/driver/functions.h"

namespace fibshim::contract {

using Driver = simcuda::Functions;

// Loads the driver once; ends the program with a message if there is none.
const Driver& cuda();

std::string error_name(CUresult error);

// Records a fact that a driver may decide either way: as a property of the test (`key` is one
// word), and as a line "measured: Suite.Test key: value", which tests/gpu/run.sh collects.
void record(const std::string& key, const std::string& value);

// Compares by name, so that a failure reads "CUDA_ERROR_INVALID_VALUE", not "1".
#define EXPECT_CUDA(expected, call) EXPECT_EQ(error_name(expected), error_name(call)) << #call
#define ASSERT_CUDA(expected, call) ASSERT_EQ(error_name(expected), error_name(call)) << #call
#define EXPECT_OK(call) EXPECT_CUDA(CUDA_SUCCESS, call)
#define ASSERT_OK(call) ASSERT_CUDA(CUDA_SUCCESS, call)

// Returns the path of a file in build/tests/data, relative to the program.
std::string data_path(const std::string& name);
std::vector<char> read_file(const std::string& path);

// Device 0's primary context, retained anew for each test. At the test's end everything in it ends.
class ContractTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // The cubin of this name for device 0, and the cubins that no device of this machine can run.
  std::string cubin_path(const std::string& name) const;
  std::vector<std::string> foreign_cubin_paths(const std::string& name) const;
  std::vector<char> cubin(const std::string& name) const { return read_file(cubin_path(name)); }

  // Modules and libraries that a test does not unload are unloaded at its end.
  CUmodule load_module(const std::string& name = "contract");
  CUlibrary load_library(const std::string& name = "contract");
  void unload(CUmodule module);
  void unload(CUlibrary library);
  CUfunction function(CUmodule module, const char* name);
  CUkernel kernel(CUlibrary library, const char* name);
  static CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

  // Makes another context, which is current until it ends; then the fixture's is current again.
  CUcontext make_context();
  void end_context(CUcontext context);

  // Makes an int on the device with the value 0.
  CUdeviceptr make_int();
  static int32_t read_int(CUdeviceptr pointer);

  CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING);

  // Launches sim_store(to, value) with one thread.
  static CUresult launch_store(CUfunction function, CUdeviceptr to, int32_t value,
                               CUstream stream = nullptr);
  static void expect_stores(CUfunction function, CUdeviceptr to, int32_t value) {
    EXPECT_OK(launch_store(function, to, value));
    EXPECT_EQ(value, read_int(to));
  }
  static CUDA_KERNEL_NODE_PARAMS_v2 store_node(void** params);

  static CUDA_KERNEL_NODE_PARAMS_v2 params_of(CUgraphNode node) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    EXPECT_OK(cuda().cuGraphKernelNodeGetParams_v2(node, &params));
    return params;
  }
  // Records what the old form of cuGraphKernelNodeGetParams returns for the node.
  void record_old_form(CUgraphNode node) const;
  // The name of the kernel in params read from a node, by whichever handle they contain.
  static std::string kernel_name(const CUDA_KERNEL_NODE_PARAMS_v2& params);
  // The handles in params read from a node: "func: CUfunction, kern: null, ctx: null".
  std::string handles_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) const;
  // Of a node with a CUkernel, in whichever way it got it.
  static constexpr const char* kOfAKernel =
      "func: CUfunction, kern: CUkernel, ctx: the current one";

  int attribute(CUdevice_attribute which) const;
  int sm() const;

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;

 private:
  std::vector<CUmodule> modules_;
  std::vector<CUlibrary> libraries_;
};

}  // namespace fibshim::contract
