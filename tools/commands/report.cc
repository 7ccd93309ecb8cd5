// fibshim report: draws evaluation records as one HTML page.
#include <stdio.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tools/base/files.h"
#include "tools/commands/commands.h"
#include "tools/judge/records.h"
#include "tools/judge/report_page.h"

namespace fibshim::tools {

int report_command(int argc, const char* const* argv) {
  CommandLine line("report", "Draws evaluation records as one HTML page", "[OPTIONS] TRACES...",
                   "0 fine; 1 there are no records, or some cannot be read and the page is made of "
                   "the others; 2 wrong usage.");
  std::vector<std::string> paths;
  std::string output, title = "fibshim report";
  bool wants_json = false;
  line.positional("TRACES", &paths, "JSONL files, or folders of them").required();
  line.option("-o,--output", &output, "FILE", "write to this file instead of stdout");
  line.option("--title", &title, "TEXT", "its title");
  line.json(&wants_json, "the records that count, as JSON, instead of the page");
  if (!line.parse(argc, argv)) return line.exit_code();

  std::vector<nlohmann::ordered_json> records;
  std::vector<std::string> faults;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) faults.push_back(path + ": there is no such file");
    for (auto& record : judge::read_records(path, &faults)) records.push_back(std::move(record));
  }
  for (const std::string& fault : faults) print_message("report", printable(fault));
  if (records.empty()) {
    print_message("report", "no evaluation records");
    return kExitWrong;
  }
  records = judge::last_records(std::move(records));
  const bool is_written =
      write_output("report", output,
                   wants_json ? json_text({{"version", 1}, {"records", records}})
                              : judge::make_report_page(title, records));
  return is_written && faults.empty() ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
