// fibshim report: evaluation records as one HTML page.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tools/base/atomic_file.h"
#include "tools/base/commands.h"
#include "tools/judge/records.h"
#include "tools/judge/report_page.h"
#include "tools/base/options.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

bool write_page(const std::string& path, const std::string& page) {
  const std::string reason = write_file_atomically(path, page, 0644);
  if (reason.empty()) return true;
  print_message("report", fmt::format("{}: {}", printable(path), reason));
  return false;
}

}  // namespace

int report_command(int argc, const char* const* argv) {
  CLI::App app("Draws evaluation records as one HTML page", "fibshim report");
  std::vector<std::string> paths;
  std::string output, title = "fibshim report";
  bool wants_json = false;
  app.add_option("TRACES", paths, "JSONL files, or folders of them")->type_name("")->required();
  app.add_option("-o,--output", output, "the page (default: standard output)")->type_name("FILE");
  app.add_option("--title", title, "its title")->type_name("TEXT");
  app.add_flag("--json", wants_json, "print the records that count as JSON instead");
  app.footer("Exit codes: 0 fine; 1 there are no records, or some cannot be read; 2 wrong usage.");
  if (int exit_code = 0; !parse_options(&app, "[OPTIONS] TRACES...", argc, argv, &exit_code))
    return exit_code;

  std::vector<nlohmann::ordered_json> records;
  std::vector<std::string> faults;
  for (const std::string& path : paths) {
    if (!std::filesystem::exists(path)) faults.push_back(path + ": there is no such file");
    for (auto& record : judge::read_records(path, &faults)) records.push_back(std::move(record));
  }
  for (const std::string& fault : faults) print_message("report", printable(fault));
  if (records.empty()) {
    print_message("report", "no evaluation records");
    return kExitWrong;
  }
  bool is_written = false;
  if (wants_json) {
    is_written = print_json({{"version", 1}, {"records", records}});
  } else {
    const std::string page = judge::make_report_page(title, records);
    is_written = output.empty() ? print_data(page) : write_page(output, page);
  }
  return is_written && faults.empty() ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
