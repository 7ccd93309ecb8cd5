// Reads the target and the kernels of a cubin (an ELF file).
//
// Pure functions over bytes. The bytes may be truncated or hostile: every read is bounded, and
// inconsistent input gives an Error (invalid_image), never a crash. The formats were measured with
// the CUDA 13.0 toolkit; the ABI of earlier ones (ELF OSABI 0x33) is read too.
#pragma once

#include <stdint.h>

#include <string_view>
#include <vector>

#include "loader/read/architecture.h"
#include "loader/read/result.h"

namespace fibshim {

struct KernelParam {
  uint16_t ordinal;
  uint32_t offset;  // bytes from the start of the parameter block
  uint32_t size;    // bytes
};

struct Dim3 {
  uint32_t x = 0, y = 0, z = 0;
};

// One kernel. A value is 0 if the image does not state it, or states "no limit".
struct CubinKernel {
  std::string name;                  // as in the symbol table (mangled for C++)
  std::vector<KernelParam> params;   // by ordinal, without gaps
  uint32_t param_bytes = 0;          // of the whole parameter block
  uint32_t registers = 0;            // per thread
  uint32_t static_shared_bytes = 0;  // size of .nv.shared; from sm_90 on with its 1 KB reserve
  uint32_t stack_bytes = 0;          // per thread
  uint32_t code_bytes = 0;
  bool has_wait = false;     // the code contains griddepcontrol.wait (from sm_90 on)
  uint32_t max_threads = 0;  // __launch_bounds__: threads of one block
  Dim3 required_threads;     // .reqntid: exactly this block
  Dim3 required_cluster;     // __cluster_dims__: exactly this cluster
};

enum class CubinAbi : uint8_t { before_13, since_13 };

struct CubinInfo {
  uint16_t sm = 0;  // 90 for sm_90
  ArchScope scope = ArchScope::portable;
  bool is_arch_specific = false;  // true if `scope` is arch_specific
  CubinAbi abi = CubinAbi::since_13;
  std::vector<CubinKernel> kernels;  // by name

  const CubinKernel* find_kernel(std::string_view name) const;  // nullptr if there is none
};

Result<CubinInfo> read_cubin(std::string_view bytes);

}  // namespace fibshim
