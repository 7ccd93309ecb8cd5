// How the findings of a folder's check are shown to people: one line each, then the line of the
// file that it is about, with a mark under the place, as compilers do.
#pragma once

#include "loader/check/check.h"

namespace fibshim::tools {

// All findings of a report.
std::string format_findings(const CheckReport& report);

// "DIR: 3 definitions, 2 solutions, 2 patterns: no mistakes" and its like.
std::string format_summary(const std::string& folder, const CheckReport& report);

}  // namespace fibshim::tools
