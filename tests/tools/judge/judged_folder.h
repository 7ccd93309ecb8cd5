// The definition, pattern and solution of the kernels in judged_kernels.cu, as JSON.
#pragma once

#include "tests/tools/fibshim_program.h"

namespace fibshim::test {

inline constexpr char kImage[] = "tests/data/judged_kernels.sm_90.cubin";

inline constexpr char kNormDefinition[] = R"json({
  "name": "rmsnorm_h64", "op_type": "rmsnorm",
  "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 64}},
  "constraints": ["batch_size >= 1"],
  "inputs": {
    "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
    "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}
  },
  "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
  "reference": "import torch\n\ndef run(hidden_states, weight):\n    EPS = 1e-6\n    x = hidden_states.float()\n    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(hidden_states.dtype)\n"
})json";

inline constexpr char kNormPattern[] = R"json({
  "label": "engine-norm", "benefit": 1,
  "match": {"symbol": "engine_norm", "params": [8, 8, 8, 8, 4]},
  "axes": {"batch_size": {"grid": "x"}},
  "arguments": {
    "hidden_states": {"arg": 0, "dtype": "bfloat16"}, "weight": {"arg": 1, "dtype": "bfloat16"},
    "output": {"arg": 2, "dtype": "bfloat16"}, "rstd": {"arg": 3, "dtype": "float32"},
    "eps": {"arg": 4, "type": "float32"}
  },
  "writes": ["output", "rstd"], "definition": "rmsnorm_h64"
})json";

inline std::string solution(const std::string& definition, const std::string& kernel,
                            const std::string& arguments, const std::string& where,
                            const std::string& more = "") {
  const std::string sha256 = run_program({"sha256sum", build_path(kImage)}).out.substr(0, 64);
  return R"({"name": "by_)" + kernel + R"(", "definition": ")" + definition +
         R"(", "author": "tests", "spec": {"language": "cuda", "target_hardware": ["NVIDIA H200"],
         "entry_point": "k.cu::k", "dependencies": [], "destination_passing_style": true},
         "sources": [{"path": "k.cu", "content": "k"}], )" +
         more + R"("launch": {"kernel": ")" + kernel +
         R"(", "images": [{"path": "judged_kernels.sm_90.cubin", "sha256": ")" + sha256 +
         R"("}], "grid": ["batch_size", 1, 1], "block": [64, 1, 1], "arguments": )" + arguments +
         R"(, "where": )" + where + "}}";
}

inline constexpr char kNormArguments[] =
    R"(["hidden_states", "weight", "output", "rstd", "eps", "batch_size"])";
inline constexpr char kAligned[] = R"(["hidden_states % 16 == 0", "output % 16 == 0"])";

// kNormPattern with these clauses and a sixth parameter of four bytes, which is this axis.
inline std::string norm_pattern(const std::string& axis, const std::string& where,
                                const std::string& definition = "rmsnorm_h64") {
  std::string text = kNormPattern;
  const auto replace = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("8, 4]", "8, 4, 4]");
  replace(R"("grid": "x"}})", R"("grid": "x"}, )" + axis + "}");
  replace(R"("definition": "rmsnorm_h64")",
          R"("where": [)" + where + R"(], "definition": ")" + definition + "\"");
  return text;
}

}  // namespace fibshim::test
