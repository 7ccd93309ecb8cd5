// What `fibshim verify` and `fibshim bench` share: the cases, a worker process for each solution,
// records, resuming, the table and the verdict.
#pragma once

#include "tools/judge/cases.h"
#include "tools/judge/records.h"

namespace fibshim::judge {

// Returns the exit code.
int run_judge(const JudgeOptions& options);

// A record's axes as text: "batch_size=1 page=16".
std::string axes_words(const nlohmann::ordered_json& record);

// Records as a table for people, and the line of totals under it.
std::string format_records(const std::vector<nlohmann::ordered_json>& records, bool is_bench);
std::string format_verdict(const std::vector<nlohmann::ordered_json>& records, size_t skipped,
                           bool is_bench);

}  // namespace fibshim::judge
