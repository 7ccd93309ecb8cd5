// The settings of this process: environment, then the folder's fibshim.json, then defaults.
//
// is_active() and clears_deepbind() are asked by every dlsym and dlopen and must not allocate, log or
// lock. The rest is read once, by
// read_settings(), when the process first touches CUDA; before that the defaults hold.
#ifndef FIBSHIM_SHIM_BASE_SETTINGS_IN_FORCE_H_
#define FIBSHIM_SHIM_BASE_SETTINGS_IN_FORCE_H_

#include <atomic>
#include <stddef.h>

#include "shim/abi/settings.h"

namespace fibshim {

struct FolderRules;
struct Snapshot;
enum class SolutionOnError : uint8_t;

// False when neither FIBSHIM_CONFIG nor FIBSHIM_RECORD names a folder, or FIBSHIM_MODE=off: then no
// hook is handed out.
bool is_active();

// True when libraries are to be opened without RTLD_DEEPBIND. False where is_active() is.
bool clears_deepbind();

// Absolute path of FIBSHIM_CONFIG, as it was when the process started.
const char* config_path();

// Reads the environment, warning of values that are not understood. Not thread-safe: runtime.cc
// calls it before it publishes anything.
void read_settings();

// Takes the folder's settings where the environment says nothing. The same caller, afterwards.
void apply_folder_settings(const Snapshot& snapshot);

// The mode of a process that goes on with this folder.
Mode mode_with(const Snapshot& snapshot);

// Takes what of a next folder's settings can change while the process runs: the mode, what an error
// does, what is logged. The log's file and the counters stay where they are. The watcher alone.
void apply_settings_of_next(const Snapshot& snapshot, Mode mode);

extern std::atomic<Mode> g_mode;
extern std::atomic<OnError> g_on_error;
inline Mode mode() { return g_mode.load(std::memory_order_relaxed); }
inline OnError on_error() { return g_on_error.load(std::memory_order_relaxed); }
// What holds for one solution: the environment's, else what the folder says of its definition, else
// on_error().
OnError on_error_of(SolutionOnError of_definition);
bool counts_devices_apart();
uint32_t quarantine_limit();  // 0: none
LogLevel log_level();
const char* stats_dir();
const char* log_file();  // "" for stderr

// FIBSHIM_JOB, else "NAME=value" of a scheduler's variable; "" when none is set.
const char* job_label();

// What every folder must fulfil that this process is ever to be in.
FolderRules folder_rules();

// Set by the environment alone: is_active() must know. Before read_settings() too.
bool wants_recording();
const char* record_folder();  // as given, but absolute
uint64_t record_limit();      // bytes

// True once libfibrecord.so is told of every launch. Set before the first handle is remembered, and never
// changed.
extern std::atomic<bool> g_is_recording;
inline bool is_recording() { return g_is_recording.load(std::memory_order_acquire); }

// Remembers the working directory that relative paths are meant from. Called when the library is
// mapped, before the program can change it.
void remember_working_directory();

// `path` made absolute from that directory. False when it does not fit.
bool make_absolute(const char* path, char* out, unsigned long out_size);

// Writes what a path setting stands for: %h host, %p pid, %q{NAME} environment variable, %% a percent
// sign. What does not fit is cut.
void expand_path(const char* pattern, char* out, size_t out_size);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_BASE_SETTINGS_IN_FORCE_H_
