// fibshim top: prints plain lines without a screen, draws a picture that fits on a screen, and
// restores the terminal however the view ends.
#include <signal.h>

#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr char kLeave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";

class Top : public testing::Test {
 protected:
  Top() {
    CountersFileBuilder builder(kNoSuchPid, 50);
    builder.add_config("/etc/fibshim/pytorch", 0xabc);
    builder.count(0, Outcome::untracked, 12);
    const size_t hit = builder.add_series("torch-rms-norm-bf16", "rmsnorm_h4096");
    builder.count(hit, Outcome::hit, 90);
    builder.count(hit, Outcome::fallback_where, 7);
    builder.count(hit, Outcome::fallback_arch, 3);
    write_text(folder_ / builder.file_name(), builder.bytes());
    options_.environment = {{"FIBSHIM_STATS_DIR", folder_.path()}, {"TERM", "xterm"}};
  }

  ProgramResult top(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "top");
    return run_fibshim(arguments, options_);
  }

  // The command for a terminal. Only the first reading comes by itself.
  std::vector<std::string> command(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {build_path("bin/fibshim"), "top", "--interval", "3600"});
    return arguments;
  }

  TemporaryFolder folder_;
  ProgramOptions options_;
};

// The lines of the picture that begins at `at`, without escape sequences.
std::vector<std::string> picture_at(const std::string& text, size_t at) {
  const size_t end = text.find(kHome, at + 1);
  const std::string drawn =
      std::regex_replace(text.substr(at, end - at), std::regex("\x1b\\[[?0-9;]*[A-Za-z]"), "");
  std::vector<std::string> out;
  std::istringstream lines(drawn);
  for (std::string line; std::getline(lines, line);) {
    out.push_back(line.substr(0, line.find('\r')));
  }
  return out;
}

TEST_F(Top, PrintsPlainBlocksIntoAPipe) {
  const ProgramResult result = exits(0, top({"--count", "2", "--interval", "0.1"}));
  EXPECT_EQ(result.err, "");
  const std::string out = std::regex_replace(
      result.out, std::regex("\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ"), "TIME");
  EXPECT_EQ(
      out,
      "TIME 112 launches, 112 executions, 0 errors, 80.4% hits, - per second; 0 live, 1 ended\n"
      "DEFINITION     PER S  LAUNCHES  ERRORS  RUNS  HIT %  HITS  FALLBACKS  UNTRACKED  MAIN "
      "REASON\n"
      "rmsnorm_h4096      -       100       0   100   90.0    90         10          0  "
      "fallback_where\n"
      "-                  -        12       0    12    0.0     0          0         12  -\n"
      "\n"
      "TIME 112 launches, 112 executions, 0 errors, 80.4% hits, 0 per second; 0 live, 1 ended\n"
      "DEFINITION     PER S  LAUNCHES  ERRORS  RUNS  HIT %  HITS  FALLBACKS  UNTRACKED  MAIN "
      "REASON\n"
      "rmsnorm_h4096      0       100       0   100   90.0    90         10          0  "
      "fallback_where\n"
      "-                  0        12       0    12    0.0     0          0         12  -\n"
      "\n");
}

TEST_F(Top, TheHeadCountsWhatTheTableCounts) {
  CountersFileBuilder builder(kNoSuchPid, 51);
  const size_t fused = builder.add_series("rewrite", "fused");
  builder.count(fused, Outcome::hit, 10);
  builder.count(fused, Outcome::absorbed, 78);
  builder.count(builder.add_series("p", "failing"), Outcome::error_fallback, 40);
  write_text(folder_ / builder.file_name(), builder.bytes());
  const std::string out = exits(0, top({"--count", "1"})).out;
  EXPECT_CONTAINS(out, " 240 launches, 240 executions, 40 errors, 74.2% hits, ");
  EXPECT_EQ(matches(out, "fused +- +88 +0 +88 +(100.0) +10 +0 ").size(), 1u) << out;
  EXPECT_EQ(matches(out, "failing +- +40 +40 +40 +0.0 +0 +(40) +0  error_fallback").size(), 1u)
      << out;
}

TEST_F(Top, PrintsJsonLines) {
  const ProgramResult result =
      exits(0, top({"--json", "--count", "2", "--interval", "0.1", "--by", "outcome"}));
  std::istringstream lines(result.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = parse_json(line);
  EXPECT_EQ(first["grouped_by"], "outcome");
  EXPECT_EQ(first["ended"], 1);
  ASSERT_EQ(first["groups"].size(), 4u);
  EXPECT_EQ(first["groups"][0], nlohmann::json({{"name", "hit"},
                                                {"launches", 90},
                                                {"executions", 90},
                                                {"body_nodes", 0},
                                                {"per_second", nullptr},
                                                {"outcomes", {{"hit", 90}}},
                                                {"executed", {{"hit", 90}}}}));
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(parse_json(line)["groups"][0]["per_second"], 0);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(Top, LeavesWhenThePipeIsClosed) {
  EXPECT_CONTAINS(
      exits(0,
            run_program({"sh", "-c", build_path("bin/fibshim") + " top --interval 0.1 | head -n 1"},
                        options_))
          .out,
      "112 launches");
}

TEST_F(Top, SaysWhyAFolderCannotBeRead) {
  write_text(folder_ / "file", "");
  const ProgramResult result = exits(1, top({"--dir", folder_ / "file", "--count", "1"}));
  EXPECT_EQ(result.err,
            "fibshim top: " + (folder_ / "file") + ": cannot read the folder: Not a directory\n");
}

TEST_F(Top, RefusesNonsenseOnTheCommandLine) {
  EXPECT_EQ(top({"--by", "colour"}).exit_code, 2);
  EXPECT_EQ(top({"--interval", "0"}).exit_code, 2);
  EXPECT_EQ(top({"--count", "0"}).exit_code, 2);
  EXPECT_EQ(top({"extra"}).exit_code, 2);
  EXPECT_EQ(exits(1, top({"--dir", folder_ / "nope", "--count", "1"})).err,
            "fibshim top: " + (folder_ / "nope") + ": no such folder\n");
}

TEST_F(Top, DrawsAndGivesTheTerminalBackOnQ) {
  LiveProgram program(command(), options_, {24, 100});
  const termios before = program.settings_before();
  ASSERT_TRUE(program.read_until("o:outcome")) << program.text();
  EXPECT_EQ(program.text().rfind(kEnter, 0), 0u);
  EXPECT_EQ(program.terminal_settings().c_lflag & ICANON, 0u);
  program.write("q");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(program.text().ends_with(kLeave)) << program.text();
  const termios after = program.terminal_settings();
  EXPECT_EQ(after.c_lflag, before.c_lflag);
  EXPECT_EQ(memcmp(after.c_cc, before.c_cc, sizeof after.c_cc), 0);
  const auto picture = picture_at(program.text(), program.text().find(kHome));
  EXPECT_EQ(picture.at(0),
            "112 launches, 112 executions, 0 errors, 80.4% hits, - per second; 0 live, 1 ended");
  EXPECT_EQ(picture.at(2),
            "rmsnorm_h4096      -       100       0   100   90.0    90         10          0  "
            "fallback_where");
  EXPECT_EQ(picture.size(), 24u);
}

TEST_F(Top, KeysChooseWhatTheLinesStandFor) {
  LiveProgram program(command(), options_, {24, 120});
  ASSERT_TRUE(program.read_until("o:outcome"));
  const size_t from = program.text().size();
  program.write("p");
  EXPECT_TRUE(program.read_until("torch-rms-norm-bf16", from)) << program.text().substr(from);
}

TEST_F(Top, FitsASmallTerminalAndFollowsItsSize) {
  LiveProgram program(command(), options_, {24, 100});
  ASSERT_TRUE(program.read_until("o:outcome"));
  for (const LiveProgram::Terminal size :
       {LiveProgram::Terminal{5, 40}, {3, 20}, {2, 10}, {1, 1}}) {
    const size_t from = program.text().size();
    program.resize(size);
    ASSERT_TRUE(program.read_until(kHome, from));
    const size_t at = program.text().find(kHome, from);
    // A picture is written in one piece; the next one, or the end of the text, ends it.
    program.resize({24, 100});
    ASSERT_TRUE(program.read_until("o:outcome", at));
    const auto picture = picture_at(program.text(), at);
    EXPECT_LE(picture.size(), size.rows);
    for (const std::string& line : picture) EXPECT_LE(line.size(), size.columns) << line;
    if (size.rows == 5) {
      EXPECT_EQ(picture.at(2), "rmsnorm_h4096      -       100       0") << program.text();
    }
  }
}

TEST_F(Top, SaysHowManyLinesDoNotFit) {
  CountersFileBuilder builder(kNoSuchPid + 1, 1);
  for (int i = 0; i < 6; ++i) {
    builder.count(builder.add_series("p", "definition" + std::to_string(i)), Outcome::hit, 1);
  }
  write_text(folder_ / builder.file_name(), builder.bytes());
  LiveProgram program(command(), options_, {6, 60});
  ASSERT_TRUE(program.read_until("q quit"));
  const auto picture = picture_at(program.text(), program.text().find(kHome));
  ASSERT_EQ(picture.size(), 6u);
  EXPECT_EQ(picture[4], "... 6 more");
}

TEST_F(Top, ShowsWhatFailsFirst) {
  CountersFileBuilder builder(kNoSuchPid + 1, 1);
  for (int i = 0; i < 5; ++i) {
    builder.count(builder.add_series("p", "definition" + std::to_string(i)), Outcome::hit, 1000);
  }
  builder.count(builder.add_series("p", "broken"), Outcome::error_fallback, 1);
  write_text(folder_ / builder.file_name(), builder.bytes());
  LiveProgram program(command(), options_, {6, 60});
  ASSERT_TRUE(program.read_until("q quit"));
  const auto picture = picture_at(program.text(), program.text().find(kHome));
  EXPECT_CONTAINS(picture.at(0), " 1 error, ");
  EXPECT_TRUE(picture.at(2).starts_with("broken ")) << picture.at(2);
}

TEST_F(Top, OfAProcessCutsTheCommandAndNoNumber) {
  CountersFileBuilder builder(kNoSuchPid + 1, 1);
  CountersFileBuilder::copy(builder.header.command, std::string(200, 'x').c_str());
  builder.count(builder.add_series("p", "d"), Outcome::hit, 1000);
  write_text(folder_ / builder.file_name(), builder.bytes());
  LiveProgram program(command({"--by", "process"}), options_, {24, 120});
  ASSERT_TRUE(program.read_until("q quit"));
  const auto picture = picture_at(program.text(), program.text().find(kHome));
  EXPECT_CONTAINS(picture.at(2), " 100.0  1000 ");
  EXPECT_TRUE(picture.at(2).ends_with("xx..")) << picture.at(2);
}

TEST_F(Top, GivesTheTerminalBackOnSignals) {
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) {
    LiveProgram program(command(), options_, {24, 100});
    const termios before = program.settings_before();
    ASSERT_TRUE(program.read_until("o:outcome"));
    kill(program.pid(), signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_TRUE(program.text().ends_with(kLeave));
    EXPECT_EQ(program.terminal_settings().c_lflag, before.c_lflag);
  }
}

TEST_F(Top, CtrlCLeavesAndCtrlZStops) {
  LiveProgram program(command(), options_, {24, 100});
  const termios before = program.settings_before();
  ASSERT_TRUE(program.read_until("o:outcome"));
  program.write("\x1a");
  ASSERT_TRUE(program.wait_until_stopped());
  EXPECT_EQ(program.terminal_settings().c_lflag, before.c_lflag);
  ASSERT_TRUE(program.read_until(kLeave));
  const size_t from = program.text().size();
  kill(program.pid(), SIGCONT);
  ASSERT_TRUE(program.read_until("o:outcome", from));
  program.write("\x03");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_TRUE(program.text().ends_with(kLeave));
}

TEST_F(Top, ColoursOnlyWhereTheyAreWanted) {
  const std::regex colours("\x1b\\[[0-9;]*m");
  {
    LiveProgram program(command(), options_, {24, 100});
    ASSERT_TRUE(program.read_until("o:outcome"));
    EXPECT_TRUE(std::regex_search(program.text(), colours));
  }
  options_.environment["NO_COLOR"] = "1";
  LiveProgram program(command(), options_, {24, 100});
  ASSERT_TRUE(program.read_until("o:outcome"));
  EXPECT_FALSE(std::regex_search(program.text(), colours)) << program.text();
}

TEST_F(Top, ADumbTerminalGetsPlainLines) {
  options_.environment["TERM"] = "dumb";
  LiveProgram program(command({"--count", "1"}), options_, {24, 100});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.text().find('\x1b'), std::string::npos) << program.text();
  EXPECT_CONTAINS(program.text(), "112 launches");
}

}  // namespace
}  // namespace fibshim::test
