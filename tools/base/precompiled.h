// The same for the tools, which write text.
#include "loader/read/precompiled.h"

#include <fmt/format.h>
