// Reads "match", or one kernel of a rewrite's "match": which kernel a pattern is for.
#pragma once

#include "loader/compile/marked_expression.h"

namespace fibshim {

// One kernel.
struct MatchSpec {
  Mark mark;  // of its object
  std::shared_ptr<const SymbolPattern> symbol;
  bool has_params = false;
  std::vector<uint16_t> params;  // bytes
  std::vector<ImageHash> images;
};

inline constexpr uint32_t kMaxParamBytes = 32764;  // CUDA's bound for all parameters of one kernel

// `what` names the object in messages. Faulty parts are reported and left out.
MatchSpec read_match(JsonValue match, const What& what, KnownTexts* known,
                     Diagnostics* diagnostics);

}  // namespace fibshim
