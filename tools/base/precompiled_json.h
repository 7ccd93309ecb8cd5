// The same for those that read or write JSON.
#include "tools/base/precompiled.h"

#include <nlohmann/json.hpp>
