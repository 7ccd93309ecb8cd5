// Checks a test's folder and returns the diagnostics as text.
#pragma once

#include "tests/loader/test_folder.h"
#include "tools/lint/advice.h"

namespace fibshim {

// Returns all diagnostics, as `fibshim check` prints them.
inline std::string all_of(const CheckReport& report) {
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    text += format_diagnostic(diagnostic) + "\n";
  }
  return text;
}

// Returns the diagnostics of one rule.
inline std::string lines_of(const CheckReport& report, Rule rule) {
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.rule == rule) text += format_diagnostic(diagnostic) + "\n";
  }
  return text;
}

inline CheckReport check(const TestFolder& folder) { return check_folder(folder.path()); }

// Checks a folder with the additional checks of `fibshim check`.
inline CheckReport advise(const std::string& folders) {
  CheckLint lint;
  CheckOptions options;
  options.lint = &lint;
  return check_folder(folders, options);
}
inline CheckReport advise(const TestFolder& folder) { return advise(folder.path()); }

}  // namespace fibshim
