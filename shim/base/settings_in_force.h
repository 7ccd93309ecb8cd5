// The settings of this process: environment, then the folder's fibshim.json, then defaults.
//
// is_active() and clears_deepbind() are called by dlsym and dlopen, and must not allocate, log or
// lock. read_settings() reads the rest once, when the process first uses CUDA; until then the
// defaults apply.
#pragma once

#include <atomic>
#include <limits.h>
#include <stddef.h>

#include "shim/abi/control_format.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct FolderRules;
struct Snapshot;
enum class SolutionOnError : uint8_t;
enum class OnMismatch : uint8_t;

// False if neither FIBSHIM_CONFIG nor FIBSHIM_RECORD is set, or with FIBSHIM_MODE=off. Then no hook
// is handed out.
bool is_active();

// True if libraries are to be opened without RTLD_DEEPBIND. False if is_active() is false.
bool clears_deepbind();

// FIBSHIM_CONFIG, with paths made absolute in the working directory at the start.
const char* config_path();

// The values that the functions below return. Written only by life/read_settings.cc.
struct SettingValues {
  char config_path[PATH_MAX];
  char stats_dir[PATH_MAX];
  char log_file[PATH_MAX];
  char record_folder[PATH_MAX];
  char record_images[1024];
  RecordTimes record_times = RecordTimes::automatic;
  char job[kControlTextBytes];
  Trust trust = Trust::owner;
  char required_key[8192];
  uint64_t record_limit = kDefaultRecordLimit;
  std::atomic<LogLevel> log_level{LogLevel::warn};
  std::atomic<bool> counts_devices_apart{true};
  std::atomic<uint32_t> quarantine_limit{0};
  std::atomic<uint32_t> shadow_interval{0};
  std::atomic<MismatchAction> on_mismatch{MismatchAction::warn};
  uint64_t shadow_memory = kDefaultShadowMemory;
  bool is_set[kSettingCount];  // by the environment
};
extern SettingValues g_settings;

// True if the environment has a nonempty value for it.
bool is_given(const char* name);

extern std::atomic<Mode> g_mode;
extern std::atomic<OnError> g_on_error;
inline Mode mode() { return g_mode.load(std::memory_order_relaxed); }
inline OnError on_error() { return g_on_error.load(std::memory_order_relaxed); }
// Returns the value for one solution: the environment's, else the folder's for its definition, else
// `of_folder`, its generation's.
OnError on_error_of(SolutionOnError of_definition, OnError of_folder);
bool counts_devices_apart();
uint32_t quarantine_limit();  // 0: none
// Like on_error_of(). N if one of N launches is checked, or 0; and what a mismatch does.
uint32_t shadow_interval_of(uint32_t of_definition);
MismatchAction on_mismatch_of(OnMismatch of_definition);
uint64_t shadow_memory();  // bytes
LogLevel log_level();
const char* stats_dir();
const char* log_file();  // "" for stderr

// FIBSHIM_JOB, else "NAME=value" of a scheduler's variable; "" if none is set.
const char* job_label();

// The conditions that every folder of this process must meet.
FolderRules folder_rules();

// Depends only on the environment, since is_active() needs it. Valid even before read_settings().
bool wants_recording();
const char* record_folder();  // absolute, not expanded
uint64_t record_limit();      // bytes
const char* record_images();  // glob of kernels' names; "": none
RecordTimes record_times();

// True once every launch is reported to libfibrecord.so. Set before the first handle is learnt, and
// never changed.
extern std::atomic<bool> g_is_recording;
inline bool is_recording() { return g_is_recording.load(std::memory_order_acquire); }

// Remembers the working directory, to which relative paths refer. Called when the library is
// mapped, before the program can change it.
void remember_working_directory();

// Makes `path` absolute, relative to that directory. False: it does not fit.
bool make_absolute(const char* path, char* out, unsigned long out_size);

// Expands %h host, %p pid, %q{NAME} environment variable and %% in a path setting. Cut to fit.
void expand_path(const char* pattern, char* out, size_t out_size);

}  // namespace fibshim
