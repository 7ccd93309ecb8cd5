// What is said of a test's folder.
#pragma once

#include "tests/loader/test_folder.h"
#include "tools/lint/advice.h"

namespace fibshim {

// The diagnostics, as check prints them.
inline std::string all_of(const CheckReport& report) {
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    text += format_diagnostic(diagnostic) + "\n";
  }
  return text;
}

// Those of one rule.
inline std::string lines_of(const CheckReport& report, Rule rule) {
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.rule == rule) text += format_diagnostic(diagnostic) + "\n";
  }
  return text;
}

inline CheckReport check(const TestFolder& folder) { return check_folder(folder.path()); }

// With the command's advice.
inline CheckReport advise(const std::string& folders) {
  CheckLint lint;
  CheckOptions options;
  options.lint = &lint;
  return check_folder(folders, options);
}
inline CheckReport advise(const TestFolder& folder) { return advise(folder.path()); }

}  // namespace fibshim
