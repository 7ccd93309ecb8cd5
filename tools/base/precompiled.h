// The headers of libraries that most tools include, which make compiles once for them (Makefile).
#include "loader/read/precompiled.h"

#include <fmt/format.h>
