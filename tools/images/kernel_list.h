// Lists the kernels of engines, for `check --against`: from libraries and images, folders of them,
// and the tables that tests/engines writes.
//
// A table is text: the line "fibshim kernels 1: ENGINE", then one line for each kernel,
//   VERSION[,VERSION...] OFFSET:SIZE[,OFFSET:SIZE...] SYMBOL [CODE]
// with "-" in place of the offsets for a kernel without parameters. CODE, "code:" and 32 digits, is
// there for kernels that are compiled at run time. Faults in the (untrusted) input are Errors.
#pragma once

#include <stdint.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "loader/read/result.h"

namespace fibshim::tools {

struct KnownKernel {
  std::string symbol;
  std::vector<std::pair<uint32_t, uint32_t>> params;  // offset and size in bytes, in order
  std::string image;                                  // "xxh128:" and 32 digits; empty: not known
  std::string code;                                   // "code:" and 32 digits; empty: not known

  friend bool operator<(const KnownKernel& a, const KnownKernel& b) {
    return std::tie(a.symbol, a.params, a.image, a.code) <
           std::tie(b.symbol, b.params, b.image, b.code);
  }
};

struct KernelList {
  std::map<KnownKernel, std::set<std::string>> kernels;  // -> the files or versions that have it
  using Entry = decltype(kernels)::value_type;
  std::set<std::string> origins;      // all files or versions, those without kernels, too
  std::vector<std::string> problems;  // images that could not be read
};

// Adds the kernels of a library, an image or a table, or of every such file in a folder.
Result<void> add_kernels(const std::string& path, KernelList* list);

}  // namespace fibshim::tools
