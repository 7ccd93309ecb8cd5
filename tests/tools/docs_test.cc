// The documentation agrees with the tables in the code: man pages, README and completion
// name every command, option, setting, outcome and rule, and no other.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>

#include "loader/read/limits.h"
#include "shim/abi/graph_reasons.h"
#include "shim/abi/outcomes.h"
#include "shim/abi/settings.h"
#include "tests/support/text.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

// A man page as plain text, without roff's escapes for '-' and fonts.
std::string man_page(const std::string& name) {
  std::string text = read_text(build_path("man/" + name));
  text = std::regex_replace(text, std::regex(R"(\\f[A-Z])"), "");
  return std::regex_replace(text, std::regex(R"(\\-)"), "-");
}

std::set<std::string> setting_names() {
  std::set<std::string> out;
  for (const SettingInfo& setting : kSettings) out.insert(setting.name);
  return out;
}

std::set<std::string> names_of_outcomes_and_reasons() {
  std::set<std::string> out;
  for (const OutcomeInfo& outcome : kOutcomes) out.insert(outcome.name);
  for (const GraphReasonInfo& reason : kGraphReasons) out.insert(reason.name);
  return out;
}

std::set<std::string> command_names() {
  const std::string help = run_fibshim({"--help"}).out;
  return matches(
      help.substr(help.find("Commands:"), help.find("Options:") - help.find("Commands:")),
      "\n  ([a-z]+) ");
}

// The long and short options in the help's option lines.
std::set<std::string> options_of(const std::string& command) {
  std::set<std::string> out;
  const std::string help = run_fibshim({command, "--help"}).out;
  for (const std::string& line : matches(help, "\n  (-[^ ,]+(?:, -[^ ]+)*)")) {
    for (const std::string& option : matches(line, "(-{1,2}[a-z][a-z-]*)")) out.insert(option);
  }
  return out;
}

TEST(Docs, EveryCommandHasAManPageAndEveryManPageACommand) {
  std::set<std::string> pages;
  for (const auto& entry : std::filesystem::directory_iterator(build_path("man"))) {
    const std::set<std::string> name =
        matches(entry.path().filename().string(), "^fibshim-([a-z]+)\\.1$");
    pages.insert(name.begin(), name.end());
  }
  EXPECT_EQ(pages, command_names());
  for (const std::string& name : command_names()) {
    EXPECT_CONTAINS(man_page("fibshim.1"), ".BR fibshim-" + name + " (1)\n") << name;
  }
}

TEST(Docs, ManPageIsFilledIn) {
  for (const auto& entry : std::filesystem::directory_iterator(build_path("man"))) {
    EXPECT_EQ(matches("\n" + read_text(entry.path()), "\n(@[^\n]*@)\n"), std::set<std::string>{})
        << entry.path();
  }
  const std::string page = man_page("fibshim-run.1");
  EXPECT_CONTAINS(page, "\n.TP\n-c, --config DIR\nConfig folder (default: FIBSHIM_CONFIG).\n");
  EXPECT_CONTAINS(page, "\n.SH EXIT STATUS\n");
  EXPECT_EQ(matches(man_page("fibshim.1"), "\n\\.B (FIBSHIM_[A-Z_]+)\n"), setting_names());
  EXPECT_EQ(matches(man_page("fibshim-stats.1"), "\n\\.TP\n([a-z_]+)\n"),
            names_of_outcomes_and_reasons());
  EXPECT_CONTAINS(man_page("fibshim-config.5"),
                  "\n.TP\n" + std::to_string(kLimits[0].value) + "\n");
}

TEST(Docs, ReadmeListsTheSettingsAndOutcomes) {
  const std::string readme = read_text(source_path("README.md"));
  EXPECT_EQ(matches(readme, "(FIBSHIM_[A-Z_]+)"), setting_names());
  for (const SettingInfo& setting : kSettings) {
    const std::string row = "| `" + std::string(setting.name) + "` | ";
    const size_t at = readme.find(row);
    ASSERT_NE(at, std::string::npos) << setting.name;
    const std::string line = readme.substr(at, readme.find('\n', at) - at);
    EXPECT_CONTAINS(line, setting.value_words);
    EXPECT_CONTAINS(line, setting.default_words);
    EXPECT_CONTAINS(line, setting.meaning);
  }
  for (const OutcomeInfo& outcome : kOutcomes) {
    EXPECT_CONTAINS(readme, "| `" + std::string(outcome.name) + "` | " + outcome.meaning + " |")
        << outcome.name;
  }
}

// Every file of the tree that may contain a comment, except built files.
std::vector<std::string> source_files() {
  std::vector<std::string> out;
  for (const char* room : {"shim", "loader", "kernels", "config", "tests", "tools"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_path(room))) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".cc" || extension == ".h" || extension == ".cu" || extension == ".cuh" ||
          extension == ".sh" || extension == ".py" || extension == ".mk" || extension == ".md") {
        out.push_back(entry.path().string());
      }
    }
  }
  return out;
}

// A comment cites a document as "tools/doc/NAME.md, section 3", or with its name in quotes.
TEST(Docs, CitedDocumentsAndSectionsExist) {
  const std::regex citation(
      R"re(tools/doc/([a-z_]+\.md)(?:, (?:section ([0-9]+)|"([^"\n]+)"))?)re");
  int citations = 0;
  for (const std::string& file : source_files()) {
    std::string text = read_text(file);
    if (text.find("tools/doc/") == std::string::npos) continue;
    // Comments are wrapped.
    text = std::regex_replace(text, std::regex("\n *(?://|#|\\*)? *"), " ");
    for (std::sregex_iterator at(text.begin(), text.end(), citation), end; at != end; ++at) {
      const std::string path = source_path("tools/doc/" + (*at)[1].str());
      ASSERT_TRUE(std::filesystem::exists(path)) << file << ": " << at->str();
      const std::string heading = (*at)[2].matched   ? "\n## " + (*at)[2].str() + ". "
                                  : (*at)[3].matched ? "\n## " + (*at)[3].str() + "\n"
                                                     : "";
      EXPECT_CONTAINS(read_text(path), heading) << file << ": " << at->str();
      ++citations;
    }
  }
  EXPECT_GE(citations, 15);
}

TEST(Docs, ReadmeCountsTheSolutionsOfEachFolder) {
  if (!std::filesystem::exists(build_path("config/cublas"))) {
    GTEST_SKIP() << "the folders are not built with sanitizers: make test runs it";
  }
  const std::string readme = read_text(source_path("README.md"));
  const std::regex row(R"(\n\| `([a-z_]+)` \| [^\n]* \| ([0-9]+) \|)");
  int folders = 0;
  for (std::sregex_iterator at(readme.begin(), readme.end(), row), end; at != end; ++at) {
    const std::string solutions = build_path("config/" + (*at)[1].str() + "/solutions");
    int count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(solutions)) {
      count += entry.path().extension() == ".json" ? 1 : 0;
    }
    EXPECT_EQ((*at)[2].str(), std::to_string(count)) << (*at)[1].str();
    ++folders;
  }
  EXPECT_EQ(folders, 7);
}

TEST(Docs, ReadmeHasAtMost200Lines) {
  const std::string readme = read_text(source_path("README.md"));
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 200);
}

TEST(Docs, EveryManPageIsWellFormed) {
  if (run_program({"sh", "-c", "command -v groff"}).exit_code != 0) {
    GTEST_SKIP() << "groff is not installed";
  }
  for (const auto& entry : std::filesystem::directory_iterator(build_path("man"))) {
    EXPECT_EQ(exits(0, run_program(
                           {"groff", "-man", "-Tutf8", "-ww", "-z", "-rF0", entry.path().string()}))
                  .err,
              "")
        << entry.path();
  }
}

// ---- completion

// The candidates for completing the last of `words`.
std::set<std::string> complete(const std::vector<std::string>& words) {
  std::string quoted;
  for (const std::string& word : words) {
    quoted += " '" + (word == "fibshim" ? build_path("bin/fibshim") : word) + "'";
  }
  const std::string script = ". " + source_path("tools/completion/fibshim.bash") +
                             "\nCOMP_WORDS=(" + quoted +
                             ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
                             "\n_fibshim\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const ProgramResult result = run_program({"bash", "--norc", "-c", script});
  EXPECT_EQ(result.err, "");
  return matches("\n" + result.out, "\n([^\n]+)(?=\n)");
}

TEST(Completion, OffersTheCommands) {
  std::set<std::string> expected = command_names();
  expected.insert({"help", "--help", "-h", "--version"});
  EXPECT_EQ(complete({"fibshim", ""}), expected);
  EXPECT_EQ(complete({"fibshim", "st"}), std::set<std::string>{"stats"});
}

TEST(Completion, OffersTheOptionsOfEachCommand) {
  for (const std::string& name : command_names()) {
    EXPECT_EQ(complete({"fibshim", name, "-"}), options_of(name)) << name;
  }
}

TEST(Completion, OffersTheAcceptedValues) {
  EXPECT_EQ(complete({"fibshim", "run", "--mode", ""}),
            (std::set<std::string>{"off", "observe", "apply"}));
  EXPECT_EQ(complete({"fibshim", "run", "--on-error", "fa"}),
            (std::set<std::string>{"fail", "fallback"}));
  EXPECT_EQ(complete({"fibshim", "run", "--log", ""}),
            (std::set<std::string>{"error", "warn", "info", "debug"}));
  EXPECT_EQ(complete({build_path("bin/fibshim"), "check", "--explain", "json-"}),
            (std::set<std::string>{"json-syntax", "json-limits"}));
}

TEST(Completion, OffersThePidsThatHaveCounters) {
  TemporaryFolder folder;
  write_text(folder / "123-9.counters", "");
  write_text(folder / "4567-9.counters", "");
  const std::string script = "export FIBSHIM_STATS_DIR=" + folder.path() + "\n. " +
                             source_path("tools/completion/fibshim.bash") + "\nCOMP_WORDS=(" +
                             build_path("bin/fibshim") +
                             " stats --pid '')\nCOMP_CWORD=3\n_fibshim\n"
                             "echo \"${COMPREPLY[@]}\"";
  EXPECT_EQ(run_program({"bash", "--norc", "-c", script}).out, "123 4567\n");
}

TEST(Completion, OffersFoldersForCheckAndProgramsForRun) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "config");
  write_text(folder / "file", "");
  EXPECT_EQ(complete({"fibshim", "check", folder.path() + "/"}),
            std::set<std::string>{folder / "config"});
  EXPECT_EQ(complete({"fibshim", "run", "-c", "x", "--", "sha256su"}),
            std::set<std::string>{"sha256sum"});
  EXPECT_EQ(complete({"fibshim", "run", "-c", "x", "cat", folder.path() + "/f"}),
            std::set<std::string>{folder / "file"});
}

}  // namespace
}  // namespace fibshim::test
