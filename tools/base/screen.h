// The terminal while a live view is on it: the alternate screen, no echo, no cursor. Whatever ends
// the view, the terminal gets back what it had; also while the view is stopped (ctrl-Z).
//
// A handful of sequences that every terminal of the last decades has, and no terminfo: a container
// often has no database for the terminal that it is looked at from.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

namespace fibshim::tools {

// stdout is a terminal, and one that can do more than print lines (TERM).
bool has_screen();

// Colours are not unwanted (NO_COLOR), and stdout has a screen.
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

  // Shows these lines, cut to the screen. False when the terminal is gone.
  [[nodiscard]] bool show(const std::vector<std::string>& lines);

  // Gives the terminal back, stops this process as ctrl-Z does, and takes it again afterwards.
  void suspend();

  // Keys come on stdin: it is a terminal, too, and this process is in the foreground.
  bool has_keys() const { return has_keys_; }

 private:
  void enter();
  void leave();

  termios before_{};
  bool has_keys_ = false;
};

// The first `columns` columns of a line. Sequences that set colours take none, and are kept.
std::string cut_to_width(const std::string& line, size_t columns);

}  // namespace fibshim::tools
