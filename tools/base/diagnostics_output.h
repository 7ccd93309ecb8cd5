// Prints the findings of a folder check as compilers do: one line for each finding, then the line
// of the file that it is about, with a mark under the place.
#pragma once

#include "loader/check/check.h"

namespace fibshim::tools {

// All findings of a report.
std::string format_findings(const CheckReport& report);

// One line such as "DIR: 3 definitions, 2 solutions, 2 patterns: no mistakes".
std::string format_summary(const std::string& folder, const CheckReport& report);

}  // namespace fibshim::tools
