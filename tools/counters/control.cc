#include "tools/counters/control.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "shim/abi/writers.h"
#include "tools/counters/counters_folder.h"

namespace fibshim::tools {
namespace {

// A process that waits for a decision gives up this long after its asker would have.
constexpr std::chrono::seconds kHoldMargin{10};
constexpr std::chrono::seconds kAbortWait{1};
constexpr std::chrono::milliseconds kPollInterval{50};
// A process that has just started has its watcher thread within this time.
constexpr std::chrono::seconds kWatcherStarts{1};

void wake_all(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_on(uint32_t* word, uint32_t seen, std::chrono::milliseconds most) {
  const timespec timeout = {most.count() / 1000, most.count() % 1000 * 1'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

// The mapped control blocks, in a list that the signal handler searches. The owner of a file can
// truncate it at any time; access to the missing part raises SIGBUS. The handler then maps zeros
// there, which mean "no answer".
struct MappedRange {
  void* at;
  volatile sig_atomic_t is_cut;
  MappedRange* next;
};
MappedRange* g_mapped_ranges = nullptr;

constexpr size_t kMappedBytes = (sizeof(ControlBlock) + 4095) / 4096 * 4096;

void on_bus_error(int, siginfo_t* info, void*) {
  const auto place = reinterpret_cast<uintptr_t>(info->si_addr);
  for (MappedRange* range = g_mapped_ranges; range != nullptr; range = range->next) {
    const auto begin = reinterpret_cast<uintptr_t>(range->at);
    if (place < begin || place - begin >= kMappedBytes) continue;
    if (mmap(range->at, kMappedBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      break;
    }
    range->is_cut = 1;
    return;
  }
  signal(SIGBUS, SIG_DFL);  // not ours: the access faults again and ends the process
}

// Why no request is sent through this counters file; empty: the process may be asked.
std::string distrust_of(const struct stat& status) {
  const char* const fault = file_fault(status, is_ours_to_change(status.st_uid));
  if (fault != nullptr) return fmt::format("its counters file is not trusted: {}", fault);
  return writers_of(status.st_mode) == Writers::owner ? ""
                                                      : "other users can write its counters file";
}

// The control block of one counters file, mapped for writing.
class MappedControl {
 public:
  static tl::expected<MappedControl, std::string> open(int folder_fd, const std::string& name) {
    const FileDescriptor file(
        openat(folder_fd, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) {
      return tl::unexpected(fmt::format("cannot write its counters file: {}", strerror(errno)));
    }
    // read_counters_file() has checked the rest of the file.
    struct stat status;
    const auto header = std::make_unique<FileHeader>();
    if (fstat(file.get(), &status) != 0) return tl::unexpected(std::string(strerror(errno)));
    if (std::string why = distrust_of(status); !why.empty()) return tl::unexpected(std::move(why));
    if (pread(file.get(), header.get(), sizeof(FileHeader), 0) != sizeof(FileHeader) ||
        memcmp(header->magic, kCountersMagic, sizeof kCountersMagic) != 0 ||
        header->version != kCountersVersion || header->control_at % 4096 != 0 ||
        fstat(file.get(), &status) != 0 ||
        header->control_at > static_cast<uint64_t>(status.st_size) ||
        static_cast<uint64_t>(status.st_size) - header->control_at < sizeof(ControlBlock)) {
      return tl::unexpected(std::string("its counters file is damaged"));
    }
    void* const at = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                          static_cast<off_t>(header->control_at));
    if (at == MAP_FAILED) {
      return tl::unexpected(fmt::format("cannot map its counters file: {}", strerror(errno)));
    }
    return MappedControl(at);
  }

  ControlBlock* operator->() const { return static_cast<ControlBlock*>(range_->at); }
  bool is_cut() const { return range_->is_cut != 0; }

 private:
  struct Unmap {
    void operator()(MappedRange* range) const {
      for (MappedRange** link = &g_mapped_ranges; *link != nullptr; link = &(*link)->next) {
        if (*link != range) continue;
        *link = range->next;
        break;
      }
      munmap(range->at, kMappedBytes);
      delete range;
    }
  };
  explicit MappedControl(void* at) : range_(new MappedRange{at, 0, g_mapped_ranges}) {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
    g_mapped_ranges = range_.get();
  }
  std::unique_ptr<MappedRange, Unmap> range_;
};

template <size_t size>
void copy_text(char (&out)[size], const std::string& text) {
  memset(out, 0, size);
  memcpy(out, text.data(), std::min(text.size(), size - 1));
}

// The decision for which the processes of a job wait: its word's file, its id, how long they wait.
struct Decider {
  std::string file;
  uint64_t id;
  std::chrono::milliseconds hold;
};

// One process that is asked.
class Asked {
 public:
  Asked(int folder_fd, const ProcessCounters& process)
      : result_{process.pid, process.file, MoveState::asked, ""}, start_time_(process.start_time) {
    is_seen_ = is_process_alive(process.pid, process.start_time);
    if (!process.is_alive) {
      finish(MoveState::dead, "it has ended");
    } else if (auto control = MappedControl::open(folder_fd, process.file)) {
      control_.emplace(std::move(*control));
    } else {
      finish(MoveState::no_access, control.error());
    }
  }

  // True while its answer is awaited.
  bool is_open() const { return result_.state == MoveState::asked && !is_prepared_; }
  bool is_prepared() const { return is_prepared_; }
  const MoveResult& result() const { return result_; }
  ControlBlock* control() const { return control_->operator->(); }

  void ask(const Move& move, const Decider* decider) {
    if (result_.state != MoveState::asked) return;
    ControlBlock* const block = control();
    const uint32_t before = __atomic_load_n(&block->ask, __ATOMIC_RELAXED);
    number_ = control_number(before) + 1;
    number_ &= UINT32_MAX >> kControlBits;
    __atomic_store_n(&block->ask, control_word(number_, AskVerb::none), __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    block->asked_target = move.target;
    copy_text(block->asked_folder, move.folder);
    block->hold_ms = decider == nullptr ? 0 : static_cast<uint32_t>(decider->hold.count());
    block->decision_id = decider == nullptr ? 0 : decider->id;
    copy_text(block->decider, decider == nullptr ? "" : decider->file);
    block->asked_interval = move.shadow_interval.value_or(0);
    const AskVerb verb = move.shadow_interval ? AskVerb::shadow
                         : decider == nullptr ? AskVerb::move
                                              : AskVerb::prepare;
    __atomic_store_n(&block->ask, control_word(number_, verb), __ATOMIC_SEQ_CST);
    wake_all(&block->ask);
    asked_at_ = ControlClock::now();
  }

  // Settles a process that has no thread to answer yet. The request stays: it is carried out once
  // the thread runs.
  void check_watcher() {
    if (result_.state == MoveState::asked && !has_watcher()) {
      finish(MoveState::no_watcher, "it has no thread yet that could move it");
    }
  }

  // Reads the answer; waits a little if there is none. `is_decided`: the decision is made, so
  // "prepared" is not an answer any more.
  void read_answer(bool is_decided) {
    if (result_.state != MoveState::asked || (is_prepared_ && !is_decided)) return;
    ControlBlock* const block = control();
    const uint32_t answer = __atomic_load_n(&block->answer, __ATOMIC_ACQUIRE);
    const auto state = control_state<AnswerState>(answer);
    if (control_number(answer) == number_) {
      if (state == AnswerState::moved) {
        result_.moved_graphs = block->moved_graphs;
        result_.kept_graphs = block->kept_graphs;
        return finish(MoveState::moved, "");
      }
      if (state == AnswerState::refused) return finish(MoveState::refused, text_of(block->message));
      if (state == AnswerState::aborted) {
        return finish(MoveState::aborted, "another process of the job has not prepared");
      }
      if (state == AnswerState::prepared && !is_decided) {
        is_prepared_ = true;
        return;
      }
    }
    if (control_->is_cut()) {
      return finish(MoveState::no_access, "its counters file was cut short meanwhile");
    }
    if (is_seen_ && !is_process_alive(result_.pid, start_time_)) {
      return finish(MoveState::dead, "it has ended meanwhile");
    }
    // A process that has just started begins its thread within moments.
    if (ControlClock::now() - asked_at_ >= kWatcherStarts) {
      check_watcher();
      if (result_.state != MoveState::asked) return;
    }
    wait_on(&block->answer, answer, kPollInterval);
  }

  void give_up() {
    if (result_.state != MoveState::asked) return;
    check_watcher();
    if (result_.state == MoveState::asked) {
      finish(MoveState::timed_out, "it has not answered in time");
    }
  }

  void wake() {
    if (control_) wake_all(&control()->ask);
  }

 private:
  void finish(MoveState state, const std::string& reason) {
    result_.state = state;
    result_.reason = reason;
    is_prepared_ = false;
  }

  MoveResult result_;
  uint64_t start_time_;
  bool is_seen_;  // false: only its file says that it lives, as from another container
  std::optional<MappedControl> control_;
  bool has_watcher() const {
    return __atomic_load_n(&control()->status.has_watcher, __ATOMIC_RELAXED) != 0;
  }

  uint32_t number_ = 0;
  ControlClock::time_point asked_at_;
  bool is_prepared_ = false;
};

std::vector<Asked> open_all(const AskingRight& right,
                            const std::vector<ProcessCounters>& processes) {
  std::vector<Asked> out;
  out.reserve(processes.size());
  for (const ProcessCounters& process : processes) out.emplace_back(right.folder_fd(), process);
  return out;
}

std::vector<MoveResult> results_of(const std::vector<Asked>& all) {
  std::vector<MoveResult> out;
  out.reserve(all.size());
  for (const Asked& one : all) out.push_back(one.result());
  return out;
}

// Waits until all have answered or `deadline` has passed.
void wait_for_all(std::vector<Asked>* all, bool is_decided, ControlClock::time_point deadline) {
  for (Asked& one : *all) {
    while ((is_decided ? one.result().state == MoveState::asked : one.is_open())) {
      one.read_answer(is_decided);
      if (ControlClock::now() >= deadline) {
        one.read_answer(is_decided);
        if (is_decided ? one.result().state == MoveState::asked : one.is_open()) one.give_up();
      }
    }
  }
}

uint64_t draw_id() {
  uint64_t id = 0;
  if (getrandom(&id, sizeof id, 0) != sizeof id) {
    id = static_cast<uint64_t>(ControlClock::now().time_since_epoch().count()) ^
         static_cast<uint64_t>(getpid()) << 40;
  }
  return id << kDecisionBits >> kDecisionBits;
}

}  // namespace

const char* move_state_name(MoveState state) {
  static constexpr const char* kNames[] = {"asked",      "moved",      "refused",   "aborted",
                                           "dead",       "no_watcher", "no_access", "timed_out",
                                           "would_move", "would_stay"};
  return kNames[static_cast<size_t>(state)];
}

const char* shadow_state_name(MoveState state) {
  return state == MoveState::moved ? "done" : move_state_name(state);
}

tl::expected<AskingRight, std::string> AskingRight::acquire(const std::string& folder,
                                                            ControlClock::time_point deadline) {
  auto opened = open_counters_folder(folder);
  if (!opened) return tl::unexpected(opened.error());
  if (!opened->fd)
    return tl::unexpected(fmt::format("cannot read the folder: {}", strerror(ENOENT)));
  if (!opened->change_fault.empty()) return tl::unexpected(opened->change_fault);
  while (flock(opened->fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return tl::unexpected(std::string(strerror(errno)));
    if (ControlClock::now() >= deadline) {
      return tl::unexpected(std::string("another fibshim swap is at work there"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return AskingRight(std::move(opened->fd));
}

void time_steps(int folder_fd, const std::vector<ProcessCounters>& processes, bool is_wanted) {
  // A random number, which differs from that of an earlier request.
  const uint32_t number = is_wanted ? static_cast<uint32_t>(draw_id()) | 1 : 0;
  for (const ProcessCounters& process : processes) {
    const auto control = MappedControl::open(folder_fd, process.file);
    if (control) __atomic_store_n(&(*control)->times_steps, number, __ATOMIC_RELAXED);
  }
}

std::vector<MoveResult> move_each(const AskingRight& right,
                                  const std::vector<ProcessCounters>& processes, const Move& move,
                                  const ControlClock::time_point* deadline) {
  std::vector<Asked> all = open_all(right, processes);
  for (Asked& one : all) one.ask(move, nullptr);
  if (deadline != nullptr) {
    wait_for_all(&all, true, *deadline);
  } else {
    for (Asked& one : all) one.check_watcher();
  }
  return results_of(all);
}

std::vector<MoveResult> ask_shadow(const AskingRight& right,
                                   const std::vector<ProcessCounters>& processes,
                                   const std::string& definition, uint32_t interval,
                                   ControlClock::time_point deadline) {
  return move_each(right, processes, {AskTarget::folder, definition, interval}, &deadline);
}

std::string check_at_least(const std::string& folder, const std::vector<ProcessCounters>& processes,
                           uint32_t interval, ControlClock::time_point deadline) {
  const auto right = AskingRight::acquire(folder, deadline);
  if (!right) return right.error();
  for (const MoveResult& result : ask_shadow(*right, processes, "", interval, deadline)) {
    if (result.state == MoveState::moved || result.state == MoveState::dead) continue;
    return fmt::format("process {}: {}: {}", result.pid, shadow_state_name(result.state),
                       result.reason);
  }
  return "";
}

std::vector<MoveResult> move_together(const AskingRight& right,
                                      const std::vector<ProcessCounters>& processes,
                                      const Move& move, ControlClock::time_point deadline) {
  std::vector<Asked> all = open_all(right, processes);
  const bool can_all = std::ranges::all_of(all, &Asked::is_open);
  if (all.empty() || !can_all) {
    std::vector<MoveResult> out = results_of(all);
    for (MoveResult& result : out) {
      if (result.state != MoveState::asked) continue;
      result.state = MoveState::aborted;
      result.reason = "another process of the job cannot be asked";
    }
    return out;
  }
  // All of them watch the decision word in the first process's file.
  uint64_t* const word = &all.front().control()->decision;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - ControlClock::now());
  const Decider decider = {processes.front().file, draw_id(),
                           std::max(left, std::chrono::milliseconds(0)) + kHoldMargin};
  const auto decided = [&](Verdict verdict) {
    return decider.id << kDecisionBits | static_cast<uint64_t>(verdict);
  };
  __atomic_store_n(word, decided(Verdict::undecided), __ATOMIC_RELEASE);
  for (Asked& one : all) one.ask(move, &decider);
  for (Asked& one : all) {
    while (one.is_open() && ControlClock::now() < deadline) one.read_answer(false);
    if (!one.is_prepared()) break;
  }
  const bool are_ready = std::ranges::all_of(all, &Asked::is_prepared);
  uint64_t expected = decided(Verdict::undecided);
  const bool is_ours = __atomic_compare_exchange_n(
      word, &expected, decided(are_ready ? Verdict::commit : Verdict::abort), false,
      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  for (Asked& one : all) one.wake();
  // After an abort nothing moves, so a short wait is enough. A process may have decided on abort
  // before us.
  const bool is_commit = is_ours && are_ready;
  wait_for_all(&all, true, ControlClock::now() + (is_commit ? kHoldMargin : kAbortWait));
  return results_of(all);
}

}  // namespace fibshim::tools
