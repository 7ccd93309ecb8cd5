// Kernels of engines, for `check --against`: out of libraries and images, folders of them, and the tables
// that tests/engines writes.
//
// A table is text: the line "fibshim kernels 1: ENGINE", then one line for each kernel,
//   VERSION[,VERSION...] OFFSET:SIZE[,OFFSET:SIZE...] SYMBOL [CODE]
// with "-" for a kernel that takes no parameters, and "code:" and 32 digits for one that is compiled at run time. The bytes may be anything: what does not add up is an Error.
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
  std::set<std::string> origins;      // all of them, without kernels too
  std::vector<std::string> problems;  // images that could not be read
};

// Adds what a library, an image, a table or every such file of a folder holds.
Result<void> add_kernels(const std::string& path, KernelList* list);

}  // namespace fibshim::tools
