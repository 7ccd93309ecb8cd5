// Reads the contents of GPU images, and of host programs and libraries that contain images. The
// bytes may be damaged or hostile: an inconsistency is an Error, or a problem of the image in which
// it is; other images are still read.
#pragma once

#include <optional>
#include <unordered_map>

#include "loader/read/cubin.h"
#include "loader/read/fatbin.h"

namespace fibshim::tools {

// Which kernels are wanted: those whose name, mangled or readable, fits one of the globs; all if
// there is none. A glob that begins with re:, glob: or demangled: is read as a pattern's symbol.
using KernelGlobs = std::vector<std::string>;

// What is wrong with one of the globs, or "".
std::string globs_mistake(const KernelGlobs& globs);

// A cubin or PTX.
struct CodeContents {
  std::string arch;
  std::string code;  // "code:" and 32 digits; empty: PTX, or not known
  CubinAbi abi = CubinAbi::since_13;
  std::string ptx_version;  // empty: a cubin
  size_t kernels_in_all = 0;
  std::vector<CubinKernel> kernels;  // the wanted ones; of PTX only the names
};

struct EntryContents {
  FatbinEntry header;
  std::string sha256;  // empty: not unpacked
  std::optional<CodeContents> image;
  std::string problem;  // why there is no image
};

// A region of fatbins. The driver loads it as one module, which patterns may name by its hash.
struct FatbinContents {
  std::string image;  // "xxh128:" and 32 digits
  std::vector<EntryContents> entries;
};

struct PackedCubin {
  std::string image;
  CodeContents code;
};

enum class ContentsKind : uint8_t { code, fatbin, host_elf };

struct ImageContents {
  ContentsKind kind = ContentsKind::code;
  std::string image;                    // "xxh128:" and 32 digits, for code and fatbin
  CodeContents code;                    // for code
  std::vector<FatbinContents> fatbins;  // one for fatbin, any number for host_elf
  // For host_elf.
  std::vector<PackedCubin> cubins;
  std::string machine;
  std::string soname;  // empty: none
  std::vector<std::string> needed;
  uint64_t exported_symbols = 0;

  bool has_gpu_code = false;  // even if the globs want none of it
  std::vector<std::string> problems;
};

// Uses all processors of the process if there is enough to unpack. Computes SHA-256 sums of the
// entries only if wants_sums: they take as long as unpacking.
Result<ImageContents> read_image(std::string_view bytes, const KernelGlobs& globs, bool wants_sums);

// Caches demangled names: libraries contain every kernel once for each of six GPUs or more.
class ReadableNames {
 public:
  const std::string& of(const std::string& symbol);

 private:
  std::unordered_map<std::string, std::string> names_;
};

}  // namespace fibshim::tools
