// The settings, as one table: the shim's parser, `fibshim env`, the man page and the README's list
// are made from it. Values come from the environment, then from the folder's fibshim.json, then
// from the defaults here.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class Mode : uint8_t { off, observe, apply };
enum class OnError : uint8_t { fail, fallback };
// How a recording times kernels.
enum class RecordTimes : uint8_t { automatic, cupti, events };
enum class LogLevel : uint8_t { error, warn, info, debug };

// Who may be able to write a trusted file.
enum class Trust : uint8_t {
  owner,  // root, the folder's owner and this process's user
  group,  // also the files' groups, and those named in an ACL
  all,    // anybody
};

// What happens to a solution whose result differs from the original's.
enum class MismatchAction : uint8_t { warn, quarantine, quarantine_job };

enum class Deepbind : uint8_t { keep, clear };

enum class SettingId : uint8_t {
  config,
  mode,
  on_error,
  stats_dir,
  log,
  log_file,
  deepbind,
  trust,
  require_key,
  record,
  record_limit,
  record_images,
  record_times,
  job,
  quarantine,
  devices,
  shadow,
  shadow_memory,
  on_mismatch,
};

struct SettingInfo {
  SettingId id;
  const char* name;           // with the FIBSHIM_ prefix
  const char* choices[4];     // accepted values, in the order of the enum; empty: free text
  const char* value_words;    // the accepted values, described for help
  const char* default_words;  // the default, described for help
  const char* meaning;
  // May be set in fibshim.json. A folder is data: it may say what happens to launches, never where
  // the process writes files, what it loads or whom it trusts.
  bool is_allowed_in_folder;
};

inline constexpr SettingInfo kSettings[] = {
    {SettingId::config,
     "FIBSHIM_CONFIG",
     {},
     "folder, or folders with : between",
     "unset: the shim does nothing",
     "the config folder; of several, the first that has a definition's solution or a pattern's "
     "label wins",
     false},
    {SettingId::mode,
     "FIBSHIM_MODE",
     {"off", "observe", "apply"},
     "off, observe or apply",
     "apply",
     "off: do nothing; observe: count, never redirect; apply: redirect",
     true},
    {SettingId::on_error,
     "FIBSHIM_ON_ERROR",
     {"fail", "fallback"},
     "fail or fallback",
     "fail",
     "what a matched solution that cannot load or launch does to the call",
     true},
    {SettingId::stats_dir,
     "FIBSHIM_STATS_DIR",
     {},
     "folder",
     "/dev/shm/fibshim-<uid>",
     "where the counters files lie",
     false},
    {SettingId::log,
     "FIBSHIM_LOG",
     {"error", "warn", "info", "debug"},
     "error, warn, info or debug",
     "warn",
     "the least severe messages to write",
     true},
    {SettingId::log_file,
     "FIBSHIM_LOG_FILE",
     {},
     "path with %h host, %p pid, %q{VAR} variable",
     "stderr",
     "where messages go",
     false},
    {SettingId::deepbind,
     "FIBSHIM_DEEPBIND",
     {"keep", "clear"},
     "keep or clear",
     "keep",
     "clear: leave out RTLD_DEEPBIND where the program opens a library with it: it hides the hooks "
     "from "
     "the library",
     false},
    {SettingId::trust,
     "FIBSHIM_TRUST",
     {"owner", "group", "all"},
     "owner, group or all",
     "owner",
     "who, besides root, may be able to write the config folder and its files",
     false},
    {SettingId::require_key,
     "FIBSHIM_REQUIRE_KEY",
     {},
     "minisign public key, or path of a file with one",
     "unset: no signature is asked for",
     "use only a config folder that this key has signed",
     false},
    {SettingId::record,
     "FIBSHIM_RECORD",
     {},
     "folder with %h host, %p pid, %q{VAR} variable",
     "unset: nothing is recorded",
     "where a recording of all launches goes, a file for each process",
     false},
    {SettingId::record_limit,
     "FIBSHIM_RECORD_LIMIT",
     {},
     "64k or more, in bytes or with k, M, G",
     "64M",
     "the size that no process's recording may exceed",
     false},
    {SettingId::record_images,
     "FIBSHIM_RECORD_IMAGES",
     {},
     "glob of kernel names",
     "unset: none is kept",
     "keep these kernels' images, too, in images/ below that folder, within the same limit",
     false},
    {SettingId::record_times,
     "FIBSHIM_RECORD_TIMES",
     {"auto", "cupti", "events"},
     "auto, cupti or events",
     "auto",
     "what times kernels: CUPTI where it can (cupti: warn where not), or events on their stream",
     false},
    {SettingId::job,
     "FIBSHIM_JOB",
     {},
     "name",
     "SLURM_JOB_ID or another scheduler's variable",
     "the job that the process is a rank of, for fibshim swap --job",
     false},
    {SettingId::quarantine,
     "FIBSHIM_QUARANTINE",
     {},
     "number of failures, 0 for never",
     "0",
     "how many failed launches of a solution it takes until it is not used any more",
     true},
    {SettingId::devices,
     "FIBSHIM_DEVICES",
     {"apart", "together"},
     "apart or together",
     "apart",
     "together: count launches of equal devices through one handle as one device's, which is "
     "faster",
     true},
    {SettingId::shadow,
     "FIBSHIM_SHADOW",
     {},
     "off or 1/N",
     "off",
     "check one of N launches that would be hits: the original runs, the solution runs on copies, "
     "and the outputs are compared",
     true},
    {SettingId::shadow_memory,
     "FIBSHIM_SHADOW_MEMORY",
     {},
     "64k or more, in bytes or with k, M, G",
     "64M",
     "how much GPU memory those copies may take in each context",
     false},
    {SettingId::on_mismatch,
     "FIBSHIM_ON_MISMATCH",
     {"warn", "quarantine", "quarantine_job"},
     "warn, quarantine or quarantine_job",
     "warn",
     "what becomes of a solution that such a comparison finds wrong; quarantine: it is left alone; "
     "quarantine_job: by all ranks of the job",
     true},
};

// Settings of earlier versions. If one is still set, a warning says once what to use instead.
struct RemovedSetting {
  const char* name;
  const char* instead;
};
inline constexpr RemovedSetting kRemovedSettings[] = {
    {"FIBSHIM_TRACE_LAST",
     "use compute-sanitizer or CUDA_LAUNCH_BLOCKING=1 to find a faulty kernel"},
};

// Without FIBSHIM_JOB, the first of these variables that is set names the job, as NAME=value.
inline constexpr const char* kJobVariables[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID",
                                                "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"};

inline constexpr uint32_t kMostQuarantine = 1'000'000'000;

// Parses a decimal number up to `most`. Returns false if the text is not one.
constexpr bool parse_count(const char* text, uint32_t most, uint32_t* out) {
  uint64_t value = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9' && value <= most; ++at) {
    value = value * 10 + static_cast<uint64_t>(*at - '0');
  }
  if (at == text || *at != 0 || value > most) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}
// Parses "off" in any letter case (0) or "1/N" (N).
constexpr bool parse_shadow(const char* text, uint32_t* interval) {
  constexpr uint32_t kMostInterval = 1'000'000'000;
  const auto is_letter = [&](int i, char small) { return (text[i] | 0x20) == small; };
  if (is_letter(0, 'o') && is_letter(1, 'f') && is_letter(2, 'f') && text[3] == 0) {
    *interval = 0;
    return true;
  }
  return text[0] == '1' && text[1] == '/' && parse_count(text + 2, kMostInterval, interval) &&
         *interval != 0;
}
inline constexpr uint64_t kDefaultShadowMemory = uint64_t{64} << 20;
inline constexpr uint64_t kDefaultRecordLimit = uint64_t{64} << 20;
inline constexpr uint64_t kSmallestBytes = uint64_t{64} << 10;  // lower limit of both

// Parses "65536", "64k", "1M", "2G". Returns false if the text is malformed or the size too small.
constexpr bool parse_bytes(const char* text, uint64_t* out) {
  constexpr uint64_t kMost = UINT64_MAX >> 1;
  uint64_t number = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9'; ++at) {
    const auto digit = static_cast<uint64_t>(*at - '0');
    if (number > (kMost - digit) / 10) return false;
    number = number * 10 + digit;
  }
  const int shift = *at == 'k' || *at == 'K' ? 10 : *at == 'M' ? 20 : *at == 'G' ? 30 : 0;
  if (at == text || at[shift == 0 ? 0 : 1] != 0 || number > kMost >> shift) return false;
  if (number << shift < kSmallestBytes) return false;
  *out = number << shift;
  return true;
}

// True if `text` is a valid value of a setting without choices.
constexpr bool takes_text(SettingId id, const char* text) {
  uint32_t count = 0;
  uint64_t bytes = 0;
  switch (id) {
    case SettingId::quarantine: return parse_count(text, kMostQuarantine, &count);
    case SettingId::shadow: return parse_shadow(text, &count);
    case SettingId::record_limit:
    case SettingId::shadow_memory: return parse_bytes(text, &bytes);
    default: return true;
  }
}

inline constexpr uint32_t kSettingCount = sizeof(kSettings) / sizeof(kSettings[0]);

}  // namespace fibshim
