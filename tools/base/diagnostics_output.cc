#include "tools/base/diagnostics_output.h"

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

// Characters of a long line that are shown around the place.
constexpr size_t kMaxExcerpt = 120;

// The lines of the files that findings are about; each file is read once.
class SourceLines {
 public:
  // Line `number`, counted from 1; empty if there is none.
  std::string_view line(const std::string& file, uint32_t number) {
    const auto [entry, is_new] = files_.try_emplace(file);
    if (is_new) {
      if (auto bytes = read_file(file, kMaxJsonBytes)) entry->second = std::move(*bytes);
    }
    std::string_view text = entry->second;
    for (uint32_t i = 1; i < number && !text.empty(); ++i) {
      const size_t end = text.find('\n');
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    return text.substr(0, text.find_first_of("\r\n"));
  }

 private:
  std::map<std::string, std::string> files_;
};

// Splits a line into characters, each made printable. A tab is one character, as in columns.
std::vector<std::string> characters(std::string_view line) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < line.size()) {
    size_t end = at + 1;
    while (end < line.size() && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) ++end;
    const std::string_view character = line.substr(at, end - at);
    out.push_back(character == "\t" ? " " : printable(character));
    at = end;
  }
  return out;
}

// The excerpt and the mark under it; empty if the finding has no line that can be shown.
std::string excerpt(const Place& place, SourceLines* sources) {
  if (place.line == 0) return "";
  const std::vector<std::string> line = characters(sources->line(place.file, place.line));
  if (line.empty()) return "";
  const size_t column = place.column == 0 ? 0 : place.column - 1;
  if (column > line.size()) return "";
  const size_t first = column > kMaxExcerpt - 20 ? column - (kMaxExcerpt - 20) : 0;
  std::string shown = first > 0 ? "..." : "";
  size_t mark = display_width(shown);
  for (size_t i = first; i < line.size() && i < first + kMaxExcerpt; ++i) {
    if (i < column) mark += display_width(line[i]);
    shown += line[i];
  }
  if (first + kMaxExcerpt < line.size()) shown += "...";
  std::string number = fmt::format("{:5}", place.line);
  std::string out = fmt::format("{} | {}\n", number, shown);
  if (place.column > 0) {
    out += fmt::format("{} | {}^\n", std::string(number.size(), ' '), std::string(mark, ' '));
  }
  return out;
}

}  // namespace

std::string format_findings(const CheckReport& report) {
  SourceLines sources;
  std::string out;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    out += printable(format_diagnostic(diagnostic)) + "\n" + excerpt(diagnostic.place, &sources);
  }
  return out;
}

std::string format_summary(const std::string& folder, const CheckReport& report) {
  std::string verdict;
  if (report.error_count == 0 && report.warning_count == 0) {
    verdict = "no mistakes";
  } else {
    verdict =
        counted(report.error_count, "error") + ", " + counted(report.warning_count, "warning");
    if (report.invalid_count > 0) {
      verdict += "; the folder is not loaded";
    } else if (report.broken_solution_count > 0) {
      verdict +=
          fmt::format("; {} cannot be launched", counted(report.broken_solution_count, "solution"));
    }
  }
  if (report.note_count > 0) verdict += ", " + counted(report.note_count, "note");
  return fmt::format("{}: {}, {}, {}: {}\n", printable(folder),
                     counted(report.definition_count, "definition"),
                     counted(report.solution_count, "solution"),
                     counted(report.pattern_count, "pattern"), verdict);
}

}  // namespace fibshim::tools
