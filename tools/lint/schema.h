// The JSON Schemas of tools/schema, which editors take too and which this program holds: what in a file does not
// fit them. The loader reads the same files with words and rules of its own; `fibshim check` says what only the
// schema sees.
#pragma once

#include "loader/read/json_document.h"

namespace fibshim {

enum class SchemaName : uint8_t { pattern, solution, measurements };

struct SchemaFault {
  Mark begin, end;  // of the value that does not fit, and of what comes behind it
  std::string message;
};

// Of values within each other that do not fit, the innermost.
std::vector<SchemaFault> find_schema_faults(SchemaName schema, JsonValue root);

}  // namespace fibshim
