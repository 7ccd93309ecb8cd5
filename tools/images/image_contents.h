// What GPU images hold, and host programs or libraries with images inside. The bytes may be damaged or
// hostile: what does not add up is an Error, or a problem of the image that it is in, and hides no other.
#pragma once

#include <optional>
#include <unordered_map>

#include "loader/read/cubin.h"
#include "loader/read/fatbin.h"

namespace fibshim::tools {

// Which kernels are wanted: all where no glob was given, else those whose name, mangled or readable,
// fits one; one that begins with re:, glob: or demangled: is read as a pattern's symbol.
using KernelGlobs = std::vector<std::string>;

// What is wrong with one of them; empty: nothing.
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
  std::string problem;  // why there is none
};

// A region of fatbins: to the driver one module, which patterns may name by its hash.
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
  std::string image;                    // of code and fatbins
  CodeContents code;                    // of code
  std::vector<FatbinContents> fatbins;  // one where it is a fatbin
  // Of a host's ELF file.
  std::vector<PackedCubin> cubins;
  std::string machine;
  std::string soname;  // empty: none
  std::vector<std::string> needed;
  uint64_t exported_symbols = 0;

  bool has_gpu_code = false;  // whether the globs want any of it or not
  std::vector<std::string> problems;
};

// Works on as many processors as the process may use, where there is enough to unpack. SHA-256 sums of
// entries only where they are wanted: they take as long as unpacking.
Result<ImageContents> read_image(std::string_view bytes, const KernelGlobs& globs, bool wants_sums);

// Readable names, each demangled once: libraries have every kernel for each of six GPUs or more.
class ReadableNames {
 public:
  const std::string& of(const std::string& symbol);

 private:
  std::unordered_map<std::string, std::string> names_;
};

}  // namespace fibshim::tools
