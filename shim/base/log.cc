#include "shim/base/log.h"

#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/abi/writers.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

// Returns why nothing must be written to the log file, or null. In a folder in which everybody can
// make names, such as /tmp, the name may be another user's file, or a second name of a file of this
// user.
const char* fault_of(int file) {
  struct stat status;
  if (fstat(file, &status) != 0) return strerror(errno);
  if (S_ISREG(status.st_mode)) return file_fault(status, is_ours(status.st_uid));
  return S_ISCHR(status.st_mode) || is_ours(status.st_uid) ? nullptr : "it belongs to another user";
}

// Writing to a pipe without a reader, or a file at RLIMIT_FSIZE, would raise a signal that kills
// the host. The signals are blocked meanwhile; one that this call raises is pending for this
// thread, and is consumed.
void write_line(int file, const char* line, size_t length) {
  sigset_t of_writing;
  sigset_t before;
  sigset_t pending;
  sigemptyset(&of_writing);
  sigaddset(&of_writing, SIGPIPE);
  sigaddset(&of_writing, SIGXFSZ);
  sigemptyset(&pending);
  const bool is_blocked = pthread_sigmask(SIG_BLOCK, &of_writing, &before) == 0;
  if (is_blocked) (void)sigpending(&pending);
  // A message that cannot be written is lost: there is nowhere to report that.
  const ssize_t written = write(file, line, length);
  if (!is_blocked) return;
  const int signal = written < 0 && errno == EPIPE ? SIGPIPE : SIGXFSZ;
  if (written < static_cast<ssize_t>(length) && sigismember(&pending, signal) == 0) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    const timespec no_time = {0, 0};
    while (sigtimedwait(&one, nullptr, &no_time) < 0 && errno == EINTR) {
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Opens the log file. Done per message, since the host could close a descriptor that is kept open,
// and reuse its number. Does not wait for a reader of a FIFO. Returns stderr if no file is set, or
// it cannot be opened, which is reported once.
int open_log_file(bool* is_ours) {
  *is_ours = false;
  if (log_file()[0] == 0 || strcmp(log_file(), "/dev/stderr") == 0) return STDERR_FILENO;
  if (strcmp(log_file(), "/dev/stdout") == 0) return STDOUT_FILENO;
  char path[PATH_MAX];
  expand_path(log_file(), path, sizeof path);
  const int file = open(
      path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  const char* const fault = file < 0 ? strerror(errno) : fault_of(file);
  if (fault == nullptr) {
    *is_ours = true;
    return file;
  }
  if (file >= 0) close(file);
  static std::atomic<bool> was_said{false};
  if (!was_said.exchange(true, std::memory_order_relaxed)) {
    char line[1200];
    const int length =
        snprintf(line, sizeof line,
                 "fibshim[%d] warn: FIBSHIM_LOG_FILE %.1000s: %s; messages go to stderr\n",
                 static_cast<int>(getpid()), path, fault);
    write_line(STDERR_FILENO, line, static_cast<size_t>(length));
  }
  return STDERR_FILENO;
}

}  // namespace

void log_message(LogLevel level, const char* format, ...) {
  if (level > log_level()) return;
  const int saved_errno = errno;
  char line[2048];
  const int head =
      snprintf(line, sizeof line, "fibshim[%d] %s: ", static_cast<int>(getpid()),
               kSettings[static_cast<int>(SettingId::log)].choices[static_cast<int>(level)]);
  va_list arguments;
  va_start(arguments, format);
  const int body = vsnprintf(line + head, sizeof line - head - 1, format, arguments);
  va_end(arguments);
  size_t length = head + (body < 0 ? 0 : static_cast<size_t>(body));
  if (length > sizeof line - 2) length = sizeof line - 2;
  line[length++] = '\n';
  bool is_ours;
  const int file = open_log_file(&is_ours);
  write_line(file, line, length);
  if (is_ours) close(file);
  errno = saved_errno;
}

}  // namespace fibshim
