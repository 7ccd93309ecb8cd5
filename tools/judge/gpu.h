// The GPU, through the driver that is found at run time: the program builds and starts without one.
// One context on one device, with one stream. Only for worker processes: a kernel that faults
// destroys the context of its process.
#pragma once

#include <array>
#include <memory>
#include <string_view>

#include <cuda.h>

#include "loader/read/result.h"
#include "tools/base/try.h"
#include "shim/abi/snapshot.h"

namespace fibshim::judge {

// The parameters and the geometry of one launch.
struct Launch {
  std::vector<std::array<uint8_t, 8>> params;  // the first bytes of each are the value
  std::array<uint32_t, kGeometryCount> geometry;
  uint32_t workspace_param;  // its index, if there are workspace_bytes
  int64_t workspace_bytes;   // of memory that Gpu supplies; 0: none

  bool operator==(const Launch&) const = default;
};

struct DeviceInfo {
  std::string name;
  std::string uuid;  // "GPU-..."
  int sm = 0;        // 90 for compute capability 9.0
  int driver_version = 0;
  uint64_t l2_bytes = 0;
  uint64_t free_bytes = 0;
  std::string driver_path;
};

class Gpu {
 public:
  // If there is no driver or no such device, the error says what the user can do.
  static Result<std::unique_ptr<Gpu>> open(int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const DeviceInfo& info() const;

  Result<CUfunction> load_kernel(std::string_view image, const std::string& name,
                                 bool takes_large_clusters);

  Result<CUdeviceptr> allocate(size_t bytes);
  Result<void> release(CUdeviceptr memory);
  Result<void> to_device(CUdeviceptr to, const void* from, size_t bytes);
  Result<void> to_host(void* to, CUdeviceptr from, size_t bytes);
  Result<void> copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);  // in the stream
  Result<void> fill32(CUdeviceptr to, uint32_t value, size_t words);  // in the stream
  Result<void> fill8(CUdeviceptr to, uint8_t value, size_t bytes);    // in the stream
  // A kernel keeps its workspace, zeroed at first, until another one needs one.
  Result<void> launch(CUfunction kernel, const Launch& launch);
  Result<void> synchronize();

  // The milliseconds that each repetition of `work` takes on the device, measured by events around
  // it. `before` runs ahead of the first event each time.
  template <class Before, class Work>
  Result<std::vector<double>> time(int repetitions, const Before& before, const Work& work) {
    for (int i = 0; i < repetitions; ++i) {
      FIBSHIM_TRY(before());
      FIBSHIM_TRY(mark(2 * i));
      FIBSHIM_TRY(work());
      FIBSHIM_TRY(mark(2 * i + 1));
    }
    return elapsed(repetitions);
  }

  // A graph of `count` launches.
  Result<CUgraphExec> capture(CUfunction kernel, const Launch& one, int count);
  Result<void> launch_graph(CUgraphExec graph);

 private:
  struct Driver;
  Gpu();
  Result<void> prepare_workspace(CUfunction kernel, const Launch& launch);
  Result<void> mark(int event);  // records event number `event`
  Result<std::vector<double>> elapsed(int pairs);

  std::unique_ptr<Driver> driver_;
};

}  // namespace fibshim::judge
