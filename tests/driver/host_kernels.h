// Kernels that the simulated driver can really run, on the host: the fused RMSNorm of PyTorch, our
// curated RMSNorm kernels, and the small ones of the contract suite. They are chosen by name. The
// arguments are read by the kernel's own parameter table, so a wrong layout gives wrong numbers
// here, too.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <vector>

namespace simcuda {

struct KernelInfo;

struct HostCall {
  const KernelInfo& info;
  const uint8_t* params;  // packed
  uint32_t grid[3], block[3], cluster[3];

  template <class T>
  T arg(size_t index) const;
};

using HostKernel = void (*)(const HostCall& call);

// Returns the host implementation for a kernel of this name and layout, or null.
HostKernel find_host_kernel(const KernelInfo& info);

// True if the kernel waits for the kernel before it by itself. False only for kernels of
// SIMCUDA_KERNELS.
bool waits_by_itself(const KernelInfo& info);

}  // namespace simcuda
