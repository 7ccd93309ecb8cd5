// The settings of this process: environment, then the folder's fibshim.json, then defaults.
//
// Every dlsym and dlopen calls is_active() and clears_deepbind(): these must not allocate, log or lock.
// read_settings() reads the rest once, when the process first uses CUDA; before that the defaults
// hold.
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

// False when neither FIBSHIM_CONFIG nor FIBSHIM_RECORD names a folder, or FIBSHIM_MODE=off: then no
// hook is handed out.
bool is_active();

// True when libraries are to be opened without RTLD_DEEPBIND. False where is_active() is.
bool clears_deepbind();

// Absolute path of FIBSHIM_CONFIG, as it was when the process started.
const char* config_path();

// What the functions below answer with. Written by life/read_settings.cc alone.
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

// True when the environment has a value for it that is not empty.
bool is_given(const char* name);

extern std::atomic<Mode> g_mode;
extern std::atomic<OnError> g_on_error;
inline Mode mode() { return g_mode.load(std::memory_order_relaxed); }
inline OnError on_error() { return g_on_error.load(std::memory_order_relaxed); }
// What holds for one solution: the environment's, else what the folder says of its definition, else
// on_error().
OnError on_error_of(SolutionOnError of_definition);
bool counts_devices_apart();
uint32_t quarantine_limit();  // 0: none
// As on_error_of(): one of how many launches is checked, 0 for none; and what a mismatch does.
uint32_t shadow_interval_of(uint32_t of_definition);
MismatchAction on_mismatch_of(OnMismatch of_definition);
uint64_t shadow_memory();  // bytes
LogLevel log_level();
const char* stats_dir();
const char* log_file();  // "" for stderr

// FIBSHIM_JOB, else "NAME=value" of a scheduler's variable; "" when none is set.
const char* job_label();

// The conditions that every folder of this process must fulfil.
FolderRules folder_rules();

// Set by the environment alone: is_active() must know. Before read_settings() too.
bool wants_recording();
const char* record_folder();  // as given, but absolute
uint64_t record_limit();      // bytes
const char* record_images();  // glob of kernels' names; "": none
RecordTimes record_times();

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
