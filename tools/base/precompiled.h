// Library headers that most tools include. make precompiles them once (Makefile).
#include "loader/read/precompiled.h"

#include <fmt/format.h>
