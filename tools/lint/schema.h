// Validates files against the JSON Schemas of tools/schema, which editors use, too, and which are
// compiled into this program. The loader reads the same files with rules and messages of its own;
// `fibshim check` adds the faults that only the schema finds.
#pragma once

#include "loader/read/json_document.h"

namespace fibshim {

enum class SchemaName : uint8_t { pattern, solution, measurements };

struct SchemaFault {
  Mark begin, end;  // of the value that does not fit; `end` is behind it
  std::string message;
};

// Of nested values that do not fit, only the innermost is returned.
std::vector<SchemaFault> find_schema_faults(SchemaName schema, JsonValue root);

}  // namespace fibshim
