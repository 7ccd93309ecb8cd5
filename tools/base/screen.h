// The terminal while it shows a live view: the alternate screen, no echo, no cursor. Whatever ends
// the view, the terminal's old state is restored; also while the view is stopped (ctrl-Z).
//
// Uses a few escape sequences that every terminal of the last decades understands, and no terminfo:
// a container often has no database for the terminal that the user sits at.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

namespace fibshim::tools {

// True if stdout is a terminal that can do more than print lines (TERM).
bool has_screen();

// True if stdout has a screen and NO_COLOR does not forbid colours.
bool wants_colours();

struct ScreenSize {
  size_t rows;
  size_t columns;
};

class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  ScreenSize size() const;

  // Shows these lines, cut to the screen's size. Returns false if the terminal is gone.
  [[nodiscard]] bool show(const std::vector<std::string>& lines);

  // Restores the terminal, stops this process as ctrl-Z does, and then enters the screen again.
  void suspend();

  // True if keys come from stdin: it is a terminal, too, and this process is in the foreground.
  bool has_keys() const { return has_keys_; }

 private:
  void enter();
  void leave();

  termios before_{};
  bool has_keys_ = false;
};

// The first `columns` columns of a line. Sequences that set colours take no column, and are kept.
std::string cut_to_width(const std::string& line, size_t columns);

}  // namespace fibshim::tools
