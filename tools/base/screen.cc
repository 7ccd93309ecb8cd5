#include "tools/base/screen.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

// kEnter: alternate screen, no cursor, no wrapping of long lines. kLeave undoes it.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr char kLeave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearToEndOfLine[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";

}  // namespace

bool has_screen() {
  const char* const term = getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && term != nullptr && term[0] != '\0' &&
         strcmp(term, "dumb") != 0;
}

bool wants_colours() {
  const char* const no_color = getenv("NO_COLOR");
  return has_screen() && (no_color == nullptr || no_color[0] == '\0');
}

Screen::Screen() { enter(); }
Screen::~Screen() { leave(); }

void Screen::enter() {
  // A process in the background would be stopped if it changed the terminal's settings.
  has_keys_ = isatty(STDIN_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
              tcgetattr(STDIN_FILENO, &before_) == 0;
  if (has_keys_) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;  // read() returns at once with the bytes that are there
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  (void)write_all(STDOUT_FILENO, kEnter);
}

void Screen::leave() {
  (void)write_all(STDOUT_FILENO, kLeave);
  if (has_keys_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

ScreenSize Screen::size() const {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0) {
    return {24, 80};
  }
  return {window.ws_row, window.ws_col};
}

bool Screen::show(const std::vector<std::string>& lines) {
  const ScreenSize area = size();
  // One write, so that no half-drawn screen is seen. No line end at the end: it would scroll.
  std::string out = kHome;
  for (size_t i = 0; i < std::min(lines.size(), area.rows); ++i) {
    if (i > 0) out += "\r\n";
    out += cut_to_width(lines[i], area.columns) + kClearToEndOfLine;
  }
  if (lines.size() < area.rows) out += kClearBelow;
  return write_all(STDOUT_FILENO, out);
}

void Screen::suspend() {
  leave();
  raise(SIGSTOP);
  enter();
}

std::string cut_to_width(const std::string& line, size_t columns) {
  std::string out;
  size_t width = 0;
  for (size_t i = 0; i < line.size();) {
    if (line[i] == '\x1b') {
      const size_t end = std::min(line.find('m', i), line.size() - 1) + 1;
      out += line.substr(i, end - i);
      i = end;
      continue;
    }
    size_t end = i + 1;
    while (end < line.size() && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) ++end;
    if (width < columns) out += line.substr(i, end - i);
    ++width;
    i = end;
  }
  return out;
}

}  // namespace fibshim::tools
