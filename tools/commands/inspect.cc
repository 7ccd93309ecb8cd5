// fibshim inspect: shows the contents of a GPU image, or of a host program or library with images
// inside, and which parts of the shim a running process has. The numbers are those against which
// the loader checks solutions.

#include <nlohmann/json.hpp>

#include "loader/read/file.h"
#include "loader/read/sha256.h"
#include "tools/commands/commands.h"
#include "tools/counters/folders_in_force.h"
#include "tools/images/image_report.h"
#include "tools/counters/launch_counts.h"
#include "tools/processes/processes.h"

namespace fibshim::tools {
namespace {

using Json = nlohmann::ordered_json;

// The largest library of a framework has a little more than one GB.
constexpr size_t kMaxLibraryBytes = size_t{4} << 30;

// Appends the contents of a file. Returns its problems.
Result<std::vector<std::string>> inspect_file(const std::string& path, const KernelGlobs& globs,
                                              JsonWriter* json, std::string* text) {
  const auto bytes = read_file(path, kMaxLibraryBytes);
  if (!bytes) return tl::unexpected(bytes.error());
  auto image = read_image(*bytes, globs, json != nullptr);
  if (!image) return tl::unexpected(image.error());
  const std::string sum = sha256_hex(sha256(*bytes));
  if (json != nullptr) {
    json->open('{');
    json->key("path");
    json->text(path);
    json->key("bytes");
    json->number(bytes->size());
    json->key("sha256");
    json->text(sum);
    write_image(*image, json);
    json->close();
  } else {
    *text += fmt::format("{}: {} bytes, sha256 {}\n", printable(path), bytes->size(), sum);
    if (!image->image.empty()) *text += fmt::format("  image     {}\n", image->image);
    *text += image_text(*image, "  ");
  }
  return std::move(image->problems);
}

// ---- processes

std::string text_of(const Json& json) { return printable(json.get<std::string>()); }

// The counters of a process: the files that it has mapped, opened through its own root, so that
// this works for a process in a container, too.
Json counters_json(const ProcessInfo& process) {
  Json out = Json::array();
  for (const std::string& path : process.counters) {
    const size_t slash = path.rfind('/');
    const std::string folder = fmt::format("/proc/{}/root{}", process.pid, path.substr(0, slash));
    const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    Json item;
    item["file"] = path;
    const auto read = read_counters_file(fd.get(), path.substr(slash + 1));
    item["problem"] = read ? Json() : Json(read.error());
    if (read && read->has_value()) {
      const ProcessCounters& counters = **read;
      item["mode"] = counters.mode;
      item["config"] = Json::array();
      for (const ConfigIdentity& config : counters.configs) {
        item["config"].push_back({{"path", config.path}, {"digest", config.digest}});
      }
      item["folder"] = folder_to_json(counters.folder);
      item["totals"] = Json::object();
      for (const auto& [outcome, numbers] : totals_of(sorted_rows(counts_of(counters)))) {
        item["totals"][outcome_name(outcome)] = numbers.launches;
      }
    }
    out.push_back(std::move(item));
  }
  return out;
}

Json process_json(const ProcessInfo& process) {
  Json out;
  out["pid"] = process.pid;
  out["command"] = process.command;
  out["shim"] = or_null(process.shim);
  out["why_not"] = process.shim.empty() ? Json(why_no_shim(process.pid)) : Json();
  out["loader"] = or_null(process.loader);
  out["driver"] = or_null(process.driver);
  out["container"] = or_null(process.container);
  out["environment"] = Json::object();
  for (const auto& [name, value] : shim_variables(process.pid)) out["environment"][name] = value;
  out["counters"] = counters_json(process);
  return out;
}

std::string process_text(const Json& process) {
  const auto line = [](const char* name, const std::string& value) {
    return fmt::format("  {:<10}{}\n", name, value);
  };
  const auto path = [&process](const char* key) {
    return process[key].is_null() ? std::string("not loaded") : text_of(process[key]);
  };
  std::string out =
      fmt::format("pid {}: {}\n", process["pid"].get<uint64_t>(), text_of(process["command"]));
  out += line("shim", process["shim"].is_null() ? "not loaded: " + text_of(process["why_not"])
                                                : path("shim"));
  out += line("loader", path("loader")) + line("driver", path("driver"));
  if (!process["container"].is_null()) out += line("in", text_of(process["container"]));
  for (const auto& [name, value] : process["environment"].items()) {
    out += fmt::format("  {}={}\n", printable(name), text_of(value));
  }
  if (process["counters"].empty()) {
    out += line("counters",
                process["loader"].is_null() ? "none: it has not used CUDA under the shim" : "none");
  }
  for (const Json& item : process["counters"]) {
    out += line("counters", text_of(item["file"]));
    if (!item["problem"].is_null()) out += line("", text_of(item["problem"]));
    if (!item.contains("mode")) continue;
    out += line("  mode", text_of(item["mode"]));
    for (const Json& config : item["config"]) {
      out += line("  config", fmt::format("{} ({})", text_of(config["path"]),
                                          text_of(config["digest"]).substr(0, 12)));
    }
    const Json& folder = item["folder"];
    out += line(folder["off"].get<bool>() ? "  off from" : "  now in",
                fmt::format("{}; {}", folder["path"] == "" ? "no folder" : text_of(folder["path"]),
                            counted(folder["swaps"].get<uint64_t>(), "move")));
    if (folder["refusal"] != "") out += line("  refused", text_of(folder["refusal"]));
    for (const auto& [outcome, count] : item["totals"].items()) {
      out += fmt::format("    {:<22}{:>12}\n", outcome, count.get<uint64_t>());
    }
  }
  return out;
}

bool inspect_processes(const std::vector<uint64_t>& pids, Json* list, std::string* text) {
  bool is_fine = true;
  for (const uint64_t pid : pids) {
    bool is_forbidden = false;
    const auto process = read_process(pid, &is_forbidden);
    if (!process) {
      is_fine = false;
      print_message("inspect", "process {}: {}", pid,
                    !is_forbidden    ? "there is none"
                    : geteuid() == 0 ? "it may not be looked into"
                                     : "it may not be looked into; try as root");
      continue;
    }
    list->push_back(process_json(*process));
    *text += process_text(list->back());
  }
  return is_fine;
}

}  // namespace

int inspect_command(int argc, const char* const* argv) {
  CommandLine line(
      "inspect", "What a cubin, fatbin, PTX file, library or running process holds",
      "[OPTIONS] [FILE...]",
      "0 fine; 1 a file or process cannot be read or is damaged, the others are printed; "
      "2 wrong usage.");
  std::vector<std::string> paths;
  std::vector<uint64_t> pids;
  KernelGlobs globs;
  bool wants_json = false;
  line.positional("FILE", &paths, "files to read");
  line.pids(&pids,
            "a running process: is the shim in it, with which folder (may be repeated; another "
            "user's needs root)");
  line.option(
      "--kernel", &globs, "GLOB",
      "only kernels whose name, mangled or readable, fits; re:, glob: and demangled: as in a "
      "pattern's symbol (may be repeated)");
  line.json(&wants_json);
  line.check([&] {
    if (paths.empty() && pids.empty())
      return std::string("name at least one file, or a process with --pid");
    const std::string mistake = globs_mistake(globs);
    return mistake.empty() ? mistake : "--kernel: " + printable(mistake);
  });
  if (!line.parse(argc, argv)) return line.exit_code();

  bool is_fine = true;
  std::string text;
  JsonWriter json(&text);
  if (wants_json) {
    json.open('{');
    json.key("version");
    json.number(1);
    json.key("files");
    json.open('[');
  }
  for (const std::string& path : paths) {
    const auto problems = inspect_file(path, globs, wants_json ? &json : nullptr, &text);
    if (!problems) {
      is_fine = false;
      // Messages about a failed read already contain the path.
      const std::string& reason = problems.error().message;
      print_message("inspect", printable(reason.find(path) == std::string::npos
                                             ? fmt::format("{}: {}", path, reason)
                                             : reason));
      continue;
    }
    for (const std::string& problem : *problems) {
      is_fine = false;
      print_message("inspect", "{}: {}", printable(path), printable(problem));
    }
  }
  Json processes = Json::array();
  std::string processes_text;
  is_fine = inspect_processes(pids, &processes, &processes_text) && is_fine;
  if (wants_json) {
    json.close();
    json.key("processes");
    json.document(json_text(processes));
    json.close();
    text += '\n';
  } else {
    text += processes_text;
  }
  is_fine = print_data(text) && is_fine;
  return is_fine ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
