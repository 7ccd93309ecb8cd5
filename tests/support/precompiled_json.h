// The same for tests of programs, which print JSON.
#include "tests/support/precompiled.h"

#include <nlohmann/json.hpp>
