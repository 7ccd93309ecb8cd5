// The headers of libraries that tools with JSON include, which make compiles once for them (Makefile).
#include "tools/base/precompiled.h"

#include <nlohmann/json.hpp>
