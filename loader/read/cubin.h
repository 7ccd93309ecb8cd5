// What a GPU image says of itself: cubins (ELF), fatbins, PTX.
//
// Pure functions over bytes. The bytes may be truncated or hostile: every read is bounded, and
// what does not add up is an Error (invalid_image), never a crash. Formats as measured with the
// CUDA 13.0 toolkit; the ABI of earlier ones (ELF OSABI 0x33) is read too.
#pragma once

#include <stdint.h>

#include <string_view>
#include <vector>

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

// One kernel. 0 where the image does not say, or says "no limit".
struct CubinKernel {
  std::string name;                  // as it is in the symbol table (mangled for C++)
  std::vector<KernelParam> params;   // by ordinal, without gaps
  uint32_t param_bytes = 0;          // of the whole parameter block
  uint32_t registers = 0;            // per thread
  uint32_t static_shared_bytes = 0;  // as .nv.shared says: from sm_90 on with its 1 KB reserve
  uint32_t stack_bytes = 0;          // per thread
  uint32_t code_bytes = 0;
  bool has_wait = false;     // griddepcontrol.wait; from sm_90 on
  uint32_t max_threads = 0;  // __launch_bounds__: threads of one block
  Dim3 required_threads;     // .reqntid: exactly this block
  Dim3 required_cluster;     // __cluster_dims__: exactly this cluster
};

enum class CubinAbi : uint8_t { before_13, since_13 };

// sm_90; sm_90a runs on exactly that SM; sm_100f runs on its family.
enum class ArchScope : uint8_t { portable, arch_specific, family_specific };

struct CubinInfo {
  uint16_t sm = 0;  // 90 for sm_90
  ArchScope scope = ArchScope::portable;
  bool is_arch_specific = false;  // scope is arch_specific
  CubinAbi abi = CubinAbi::since_13;
  std::vector<CubinKernel> kernels;  // by name

  const CubinKernel* find_kernel(std::string_view name) const;  // nullptr when there is none
};

Result<CubinInfo> read_cubin(std::string_view bytes);

// "sm_90", "sm_90a", "sm_100f".
std::string arch_name(uint16_t sm, ArchScope scope);

enum class FatbinEntryKind : uint8_t { ptx, elf, other };
enum class FatbinCompression : uint8_t { none, lz4, zstd };

struct FatbinEntry {
  FatbinEntryKind kind;
  uint16_t kind_number;  // as the entry's header says: 1 PTX, 2 ELF
  uint16_t sm;
  FatbinCompression compression;
  uint64_t stored_bytes;     // in the file, without padding
  uint64_t raw_bytes;        // uncompressed
  std::string_view payload;  // the stored bytes; points into the input
};

struct FatbinInfo {
  std::vector<FatbinEntry> entries;  // in file order
};

// Reads a fatbin region (magic 0xba55ed50) or several, one after another.
Result<FatbinInfo> read_fatbin(std::string_view bytes);

// The bytes of the one region that the input begins with: what the driver takes as one image. 0 when
// it begins with none, or is shorter than that.
size_t fatbin_region_bytes(std::string_view bytes);

struct PtxInfo {
  std::string version;  // "9.0"
  uint16_t sm = 0;
  ArchScope scope = ArchScope::portable;
  std::vector<std::string> kernels;    // names after .entry, in file order
  std::vector<uint32_t> param_counts;  // of each kernel
};

// Reads the directives at the head of a PTX file, and the names of its entries.
Result<PtxInfo> read_ptx(std::string_view bytes);

enum class ImageFormat : uint8_t { unknown, cubin, fatbin, ptx };

// By the first bytes. A fatbin is its region, without the wrapper struct.
ImageFormat detect_image_format(std::string_view bytes);

}  // namespace fibshim
