// A program that runs beside the test, for what is live (a view, a server, another process to
// examine). If it still runs when the object ends, it is killed.
#pragma once

#include <stdint.h>
#include <sys/types.h>
#include <termios.h>

#include "tests/tools/fibshim_program.h"

namespace fibshim::test {

// Field 22 of /proc/<pid>/stat.
uint64_t start_time_of(pid_t pid);

// Options of a program under the shim on the simulated driver; `more` overrides these.
ProgramOptions under_shim(const std::string& config, const std::string& stats,
                          const std::map<std::string, std::string>& more = {});

// Makes copies of the config folder demo: a, b, and bad, whose pattern files are invalid.
void copy_demo_folders(const std::string& folder);

class LiveProgram {
 public:
  // stdin is a pipe that stays open; stdout and stderr are one pipe.
  explicit LiveProgram(const std::vector<std::string>& command, const ProgramOptions& options = {});

  // stdin, stdout and stderr are a terminal of this size. The program is its foreground job.
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

  // Reads until the text from `from` on contains `wanted`. Returns false if the program ends
  // before.
  bool read_until(const std::string& wanted, size_t from = 0);

  void write(const std::string& text);
  void end_input();
  void close_output();  // nobody reads any more what it prints
  void resize(Terminal terminal);
  termios terminal_settings() const;
  const termios& settings_before() const { return settings_before_; }  // before it started

  // Waits until the program has stopped itself (ctrl-Z) or ended. Returns true if it has stopped.
  bool wait_until_stopped();

  // Reads until the program ends. Returns its exit code, or 128 + the signal's number.
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
