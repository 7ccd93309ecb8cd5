// A program that runs beside the test: for what is live (a view, a server, another process to look
// at). It is killed, if it still runs, when this ends.
#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <termios.h>

#include "tests/tools/fibshim_program.h"

namespace fibshim::test {

// Field 22 of /proc/<pid>/stat.
uint64_t start_time_of(pid_t pid);

// Of a program under the shim, on the simulated driver; `more` over these.
ProgramOptions under_shim(const std::string& config, const std::string& stats,
                          const std::map<std::string, std::string>& more = {});

// Copies of the config folder demo: a, b, and bad, whose patterns are none.
void copy_demo_folders(const std::string& folder);

class LiveProgram {
 public:
  // stdin is a pipe that stays open; stdout and stderr are one pipe.
  explicit LiveProgram(const std::vector<std::string>& command, const ProgramOptions& options = {});

  // All three are a terminal of this size, of which the program is the foreground job.
  struct Terminal {
    unsigned short rows;
    unsigned short columns;
  };
  LiveProgram(const std::vector<std::string>& command, const ProgramOptions& options,
              Terminal terminal);

  ~LiveProgram();
  LiveProgram(const LiveProgram&) = delete;
  LiveProgram& operator=(const LiveProgram&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& text() const { return text_; }  // all that was read so far

  // Reads until what was written after `from` holds `wanted`. False when it ended before.
  bool read_until(const std::string& wanted, size_t from = 0);

  void write(const std::string& text);
  void end_input();
  void resize(Terminal terminal);
  termios terminal_settings() const;
  const termios& settings_before() const { return settings_before_; }  // before it began

  // Waits until the program has stopped itself (ctrl-Z), or ended. True when it has stopped.
  bool wait_until_stopped();

  // Reads to its end. The exit code, or 128 + the signal's number.
  int wait();

 private:
  bool read_more();

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int terminal_ = -1;  // the program's side, kept open to ask for its settings
  termios settings_before_{};
  std::string text_;
};

}  // namespace fibshim::test
