// What `fibshim record` shows of recordings: the summary of one, the comparison of two. Only for `record`.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::tools {

// Prints messages about what a recording lacks.
void report_losses(const Recording& recording);

// Ranks the kernels, the first `top` of them (0: all). `config`: the folders whose patterns are compared; empty: those that the
// program used. Returns the exit code.
int summarize_recording(const std::string& path, const std::string& config, uint32_t top,
                        bool wants_json);

// Prints the differences between two recordings. Returns the exit code.
int compare_two_recordings(const std::vector<std::string>& paths, double tolerance_percent,
                           bool wants_json);

}  // namespace fibshim::tools
