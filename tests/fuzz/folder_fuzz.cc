// A config folder's JSON files: definitions, solutions, patterns, settings, checked together, bound, and
// made into a snapshot.
//
// Input: files, each after a line "%%% d", "%%% s" or "%%% p" and a digit, or "%%% f" for fibshim.json.
// "@cubin@" and "@ptx@" stand for the hashes of the images scale.sm_90.cubin and scale.ptx.
#include <unistd.h>

#include <string>
#include <vector>

#include "loader/check/check.h"
#include "loader/compile/snapshot_builder.h"
#include "tests/fuzz/small_folder.h"
#include "tools/lint/advice.h"

namespace fibshim::fuzz {
namespace {

constexpr std::string_view kMark = "%%% ";

const ScratchFolder& folder() {
  static const ScratchFolder* const made = [] {
    static const ScratchFolder scratch;
    scratch.write("solutions/scale.sm_90.cubin", small_cubin());
    scratch.write("solutions/scale.ptx", kSmallPtx);
    return &scratch;
  }();
  return *made;
}

// The path that a mark stands for; empty: none.
std::string path_of(std::string_view name) {
  if (name == "f") return "fibshim.json";
  if (name.size() != 2 || name[1] < '0' || name[1] > '9') return "";
  const char* const room = name[0] == 'd'   ? "definitions/"
                           : name[0] == 's' ? "solutions/"
                           : name[0] == 'p' ? "patterns/"
                                            : nullptr;
  return room == nullptr ? "" : room + std::string(name) + ".json";
}

void check_snapshot(const CheckReport& report) {
  run_programs(*report.snapshot);
  SymbolMatch matches[16];
  for (const char* symbol : {"scale", "_Z5scalePfPKfif", "_Z12engine_scaleIfEvPT_PKT_iif"}) {
    (void)matcher_of(report.snapshot.get()).match(symbol, matches, 16);
  }
}

}  // namespace

FUZZ_TARGET(folder) {
  static std::vector<std::string> before;
  for (const std::string& path : before) unlink((folder().path() + "/" + path).c_str());
  before.clear();

  std::string_view rest = as_text(data, size);
  while (rest.substr(0, kMark.size()) == kMark) {
    const std::string path = path_of(take_until(&rest, '\n').substr(kMark.size()));
    const size_t end = rest.substr(0, kMark.size()) == kMark ? 0 : rest.find("\n%%% ");
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end == 0 ? 0 : end + 1);
    if (path.empty()) continue;
    folder().write(path, with_hashes(std::string(text)));
    before.push_back(path);
  }
  if (before.empty()) return 0;

  CheckOptions options;
  CheckLint lint({80, 90});
  options.lint = &lint;
  const CheckReport report = check_folder(folder().path(), options);
  uint32_t errors = 0;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    require(diagnostic.rule != Rule::internal, "the loader meets no fault of its own");
    require(!format_diagnostic(diagnostic).empty(), "a finding has words");
    errors += diagnostic.severity == Severity::error;
  }
  require(errors <= report.error_count && report.invalid_count <= report.error_count &&
              (errors == report.error_count || report.diagnostics.size() > kMaxFindings),
          "findings are counted");
  require((report.snapshot == nullptr) == (report.invalid_count != 0),
          "there is a snapshot, or a reason why not");
  if (report.snapshot == nullptr) return 0;
  check_snapshot(report);
  return 0;
}

}  // namespace fibshim::fuzz
