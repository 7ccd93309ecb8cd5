// Library headers that the tools with JSON include. make precompiles them once (Makefile).
#include "tools/base/precompiled.h"

#include <nlohmann/json.hpp>
