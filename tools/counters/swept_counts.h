// Counters files of processes that ended are kept for a while, then swept: their counts are added
// to one file of the folder, "swept.json", and they are removed. So the sums that a monitoring
// system reads never fall, and the folder does not grow.
//
// Safe against whoever reads, sweeps or counts meanwhile, and against a crash at any point:
//   - Sweeps of one folder take turns (a lock on the folder); readers need no lock.
//   - swept.json is replaced by rename, with a new generation and the names of the files that are
//     about to be removed: a reader leaves those out, and reads again when the generation changed.
//   - A file is swept only when its process (pid and start time) is gone and nobody has the file
//     open for writing or mapped, which also holds for processes of other containers.
//   - Only the folder's owner sweeps, and a swept.json is his or root's: what it holds are names of
//     counters files, which are looked at like all others before they are removed.
//   - Nothing is followed: a symbolic link is neither read nor swept, and a hard link not swept. The
//     folder stays the one that was opened: who may rename it can lead nobody elsewhere.
#ifndef FIBSHIM_TOOLS_COUNTERS_SWEPT_COUNTS_H_
#define FIBSHIM_TOOLS_COUNTERS_SWEPT_COUNTS_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

inline constexpr char kSweptFileName[] = "swept.json";
inline constexpr std::chrono::seconds kDefaultKeepTime = std::chrono::hours(24);

// Reads swept.json of an open folder. One that is not there, or of a user whose files are not taken for
// the folder's, is empty; one that is damaged is an error.
tl::expected<SweptCounts, std::string> read_swept_counts(const OpenFolder& folder);
tl::expected<SweptCounts, std::string> parse_swept_counts(std::string_view text);  // of its bytes

struct Removal {
  std::vector<std::string> removed;
  std::vector<RefusedFile> kept;  // files of ended processes that could not be removed
};

// Sweeps, in a folder of ours, what has been seen to be ended for `keep_time`. A file's time runs from the first sweep
// that finds its process gone; that sweep marks it by taking its write permission. Does nothing
// while another process sweeps.
tl::expected<Removal, std::string> sweep_ended_counters(const std::string& folder,
                                                        std::chrono::seconds keep_time);

// Removes the files of processes that ended, at once and with their counts, and what was swept
// before; those of other users only as root. Goes by the files' names, so damaged files go too, and touches nothing that is named
// otherwise.
tl::expected<Removal, std::string> clear_ended_counters(const std::string& folder);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COUNTERS_SWEPT_COUNTS_H_
