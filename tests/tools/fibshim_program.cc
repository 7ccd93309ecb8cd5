#include "tests/tools/fibshim_program.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>

namespace fibshim::test {
ProgramResult run_program(const std::vector<std::string>& command, const ProgramOptions& options) {
  constexpr int kTimeLimitS = 600;
  return run_process(command, options.environment, kTimeLimitS, options.folder);
}

ProgramResult run_fibshim(std::vector<std::string> arguments, const ProgramOptions& options) {
  arguments.insert(arguments.begin(), build_path("bin/fibshim"));
  return run_program(arguments, options);
}

std::string build_path(const std::string& below) { return build_dir() + "/" + below; }

std::string source_path(const std::string& below) {
  return std::string(FIBSHIM_SOURCE_FOLDER) + "/" + below;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

nlohmann::json parse_json(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << "not JSON: " << text;
  return json;
}

TemporaryFolder::TemporaryFolder() {
  const char* const base = getenv("TMPDIR");
  path_ = std::string(base == nullptr ? "/tmp" : base) + "/fibshim-tools-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  std::set<std::string> out;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    out.insert((*at)[1]);
  }
  return out;
}

}  // namespace fibshim::test
