// The same for the judge, which is optimised more.
#include "tools/base/precompiled.h"
