// Runs a command as tests/run.sh runs a test, and ends with it every process that it started, also those
// that left its session or lost their parents.
//
//   reaper [-t SECONDS] COMMAND [ARGUMENT...]
//
// The exit code is the command's, 128 + N where signal N ended it, 124 where it ran longer than SECONDS.
// All processes end, too, when the reaper is told to end or its own parent dies.
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <vector>

namespace {

constexpr int kTimedOut = 124;
constexpr int kGraceMs = 5000;  // between the request to end and the signal that cannot be ignored

struct Process {
  pid_t parent;
  char state;
  char name[32];
};

std::map<pid_t, Process> read_processes() {
  std::map<pid_t, Process> all;
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* entry = readdir(folder)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 0) continue;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE* const file = fopen(path, "re");
    if (file == nullptr) continue;
    char text[512] = "";
    const size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    Process process = {};
    // The name, in parentheses, may hold some itself.
    const char* const end = strrchr(text, ')');
    const char* const begin = strchr(text, '(');
    if (end == nullptr || begin == nullptr) continue;
    snprintf(process.name, sizeof process.name, "%.*s", static_cast<int>(end - begin - 1),
             begin + 1);
    if (sscanf(end + 1, " %c %d", &process.state, &process.parent) == 2) all[pid] = process;
  }
  closedir(folder);
  return all;
}

// Sends the signal to every descendant; says of each that lives who it is, if asked.
void signal_descendants(int signal, bool names_them) {
  const std::map<pid_t, Process> all = read_processes();
  for (const auto& [pid, process] : all) {
    pid_t above = process.parent;
    while (above > 1 && above != getpid()) {
      const auto parent = all.find(above);
      above = parent == all.end() ? 0 : parent->second.parent;
    }
    if (above != getpid()) continue;
    if (names_them && process.state != 'Z') {
      fprintf(stderr, "tests/reaper: ended process %d (%s), which was left behind\n", pid,
              process.name);
    }
    kill(pid, signal);
  }
}

// The orphans of this process's descendants become its own children: while there are none, nobody is left.
void end_descendants() {
  bool is_first = true;
  while (true) {
    pid_t ended;
    do ended = waitpid(-1, nullptr, WNOHANG);
    while (ended > 0);
    if (ended < 0 && errno == ECHILD) return;
    signal_descendants(SIGKILL, is_first);
    is_first = false;
    constexpr timespec kPause = {0, 2'000'000};
    nanosleep(&kPause, nullptr);
  }
}

long now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

// Waits for a signal until `deadline_ms`: 0 where there was none.
int wait_for_signal(const sigset_t& signals, long deadline_ms) {
  const long left_ms = deadline_ms - now_ms();
  if (left_ms <= 0) return 0;
  const timespec left = {left_ms / 1000, left_ms % 1000 * 1'000'000};
  const int signal = sigtimedwait(&signals, nullptr, &left);
  return signal > 0 ? signal : 0;
}

bool has_ended(pid_t command, int* code) {
  int status;
  pid_t ended;
  bool is_over = false;
  while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
    if (ended != command) continue;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    is_over = true;
  }
  return is_over;
}

}  // namespace

int main(int count, char** arguments) {
  long limit_ms = 1'000'000'000;
  int first = 1;
  if (count > 2 && strcmp(arguments[1], "-t") == 0) {
    limit_ms = atol(arguments[2]) * 1000;
    first = 3;
  }
  if (first >= count) {
    fprintf(stderr, "usage: reaper [-t SECONDS] COMMAND [ARGUMENT...]\n");
    return 2;
  }
  const pid_t parent = getppid();
  setsid();  // what is sent to the parent's group comes as the parent's death
  sigset_t signals;
  sigset_t before;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  if (getppid() != parent) return 128 + SIGTERM;

  const pid_t command = fork();
  if (command < 0) {
    perror("reaper: fork");
    return 126;
  }
  if (command == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    execvp(arguments[first], arguments + first);
    fprintf(stderr, "reaper: %s: %s\n", arguments[first], strerror(errno));
    _exit(127);
  }
  int code = 0;
  int ending = 0;  // the code to end with before the command has
  long deadline_ms = now_ms() + limit_ms;
  while (!has_ended(command, &code)) {
    const int signal = wait_for_signal(signals, deadline_ms);
    const bool is_late = now_ms() >= deadline_ms;
    if (signal == SIGCHLD || (signal == 0 && !is_late)) continue;
    if (ending != 0) break;
    ending = signal == 0 ? kTimedOut : 128 + signal;
    deadline_ms = now_ms() + kGraceMs;
    signal_descendants(SIGTERM, false);
  }
  end_descendants();
  return ending != 0 ? ending : code;
}
