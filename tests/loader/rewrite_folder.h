// A rewrite pattern for the folder of test_folder.h.
#pragma once

#include "tests/loader/test_folder.h"

namespace fibshim {

// A rewrite besides the valid folder's pattern: two kernels of the engine are one call of its
// definition.
inline constexpr char kRewritePath[] = "patterns/engine-two.json";
inline constexpr char kRewrite[] = R"({
  "label": "engine-two",
  "match": [
    {"symbol": "engine_double", "params": [8, 8, 4]},
    {"symbol": "engine_copy", "params": [8, 8, 4, 4]}
  ],
  "axes": {
    "n": {"arg": 2, "type": "int32"},
    "rows": {"kernel": 1, "grid": "x"}
  },
  "arguments": {
    "x": {"arg": 0, "dtype": "float32", "bytes": "4 * n * rows"},
    "twice": {"arg": 1, "dtype": "float32", "bytes": "4 * n * rows"},
    "copied": {"kernel": 1, "arg": 0, "dtype": "float32", "bytes": "4 * n * rows"},
    "y": {"kernel": 1, "arg": 1, "dtype": "float32", "bytes": "4 * n * rows"},
    "factor": {"kernel": 1, "arg": 3, "type": "float32"}
  },
  "writes": ["twice", "y"],
  "dead": ["twice"],
  "where": ["copied == twice", "factor == 0.1"],
  "definition": "scale_n{n}"
}
)";

}  // namespace fibshim
