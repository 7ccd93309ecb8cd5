// A child process for work that may crash, hang or corrupt its CUDA context. It sends its results
// to the parent, one JSON object at a time; its printed output is kept for the log.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace fibshim::judge {

using Tell = std::function<void(const nlohmann::ordered_json& message)>;

struct WorkerEnd {
  bool is_fine = false;
  bool is_timed_out = false;
  std::optional<int> exit_code;  // nothing: a signal or the time limit ended it
  std::string words;             // how it ended, if not fine
  std::string output;            // the end of its printed output
};

// Runs `body` in a child until it returns, and passes every message to `on_message` in the calling
// process. The child (with all that it started) is killed if no message has come for `timeout_s`.
// The calling process must not have initialised CUDA.
WorkerEnd run_worker(const std::function<void(const Tell& tell)>& body,
                     const std::function<void(const nlohmann::ordered_json&)>& on_message,
                     double timeout_s);

}  // namespace fibshim::judge
