#include "tools/judge/judge.h"

#include <fnmatch.h>
#include <math.h>
#include <time.h>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "loader/check/choices.h"
#include "tools/base/diagnostics_output.h"
#include "tools/judge/batch_invariance.h"
#include "tools/judge/check_references.h"
#include "tools/judge/gpu_lock.h"
#include "tools/judge/inputs.h"
#include "tools/judge/kept_times.h"
#include "tools/judge/launch_times.h"
#include "tools/judge/made_pattern.h"
#include "tools/judge/proposed_tolerances.h"
#include "tools/judge/python_reference.h"
#include "tools/judge/worker.h"
#include "tools/record/recording_json.h"
#include "tools/base/terminal.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using tools::kExitFine;
using tools::kExitUsage;
using tools::kExitWrong;
using tools::print_message;

// A solution that fails so often is not run in its other cases.
constexpr int kMostFailures = 3;
constexpr double kProbeTimeoutS = 120;
constexpr size_t kLoggedOutput = 500;
constexpr time_t kProgressS = 10;  // between two lines of progress, if no terminal shows it

std::string now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time(nullptr))); }

bool is_right_or_unjudged(const CaseOutcome& outcome) {
  return outcome.status == kPassed || outcome.status == kNotJudged;
}

class Judge {
 public:
  explicit Judge(const JudgeOptions& options)
      : options_(options),
        command_(options.trial.is_bench ? "bench" : "verify"),
        shows_progress_(!options.is_quiet),
        is_terminal_(isatty(STDERR_FILENO) != 0) {
    context_.mode = options.trial.is_bench       ? options.trial.uses_graph   ? "bench-graph"
                                                   : options.trial.flushes_l2 ? "bench"
                                                                              : "bench-warm"
                    : !options.originals.empty() ? "verify-original"
                                                 : "verify";
  }

  int run() {
    if (!read_folder(options_.folder, &folder_)) return kExitWrong;
    if (!options_.baseline.empty() && !read_folder(options_.baseline, &baseline_)) {
      return kExitWrong;
    }
    if (options_.checks_references) return check_references(folder_, options_, command_);
    if (!options_.kept_from.empty()) return keep_from_file();
    const std::string& path = options_.originals.empty() ? options_.recording : options_.originals;
    if (!path.empty()) {
      auto recording = tools::read_recording(path);
      if (!recording) {
        print_message(command_, tools::printable(path + ": " + recording.error()));
        return kExitWrong;
      }
      baseline_.recorded = recording->kernels;
      folder_.recorded = std::move(recording->kernels);
    }
    if (const int code = choose_solutions(); code != kExitFine) return code;
    const std::string path_of_workloads =
        options_.workloads.empty() ? folder_.model.folders[0].root.path() : options_.workloads;
    std::vector<std::string> faults;
    workloads_ = read_workloads(path_of_workloads, &faults);
    for (const std::string& fault : faults) print_message(command_, tools::printable(fault));
    if (!options_.workloads.empty() && workloads_.empty() && faults.empty()) {
      print_message(command_, tools::printable(options_.workloads) + ": it has no workloads");
      return kExitWrong;
    }
    if (!faults.empty()) return kExitWrong;
    trial_ = options_.trial;
    trial_.data_root = root_of_workloads(path_of_workloads);
    trial_.originals = options_.originals;
    trial_.measures_distances = !options_.tolerances.empty();

    if (options_.checks_batch_invariance) {
      if (!probe()) return kExitWrong;
      return check_batch_invariance(folder_, chosen_, options_, context_.device, command_);
    }
    if (options_.keeps && !kept_.read(folder_.model, command_)) return kExitWrong;
    if (!probe() || !start_interpreter()) return kExitWrong;
    read_earlier();
    for (const uint32_t solution : chosen_) {
      const size_t before = records_.size();
      if (!judge_solution(solution)) return kExitWrong;
      if (options_.keeps && !kept_.add(folder_.model, folder_.model.solutions[solution], context_,
                                       std::span(records_).subspan(before), command_)) {
        return kExitWrong;
      }
    }
    if (shows_progress_ && is_terminal_) fmt::print(stderr, "\r\033[K");
    return report();
  }

 private:
  bool read_folder(const std::string& path, Folder* folder) {
    CheckOptions options;
    options.model = &folder->model;
    options.lint = &folder->verify_blocks;
    folder->report = check_folder(path, options);
    if (folder->report.snapshot != nullptr) {
      const auto added =
          add_missing_patterns(folder->verify_blocks, &folder->model, &folder->report.snapshot);
      if (!added) print_message(command_, tools::printable(added.error().message));
      return added.has_value();
    }
    std::string findings = tools::format_findings(folder->report);
    if (findings.ends_with('\n')) findings.pop_back();
    print_message(command_, fmt::format("{} is not a valid config folder:\n{}", path, findings));
    return false;
  }

  int choose_solutions() {
    const std::set<std::string> wanted(options_.definitions.begin(), options_.definitions.end());
    std::set<std::string> missing = wanted;
    const auto is_wanted = [&](const std::string& name) {
      bool fits = wanted.empty();
      for (const std::string& glob : wanted) {
        if (fnmatch(glob.c_str(), name.c_str(), 0) != 0) continue;
        missing.erase(glob);
        fits = true;
      }
      return fits;
    };
    std::set<std::string> axes;
    const auto& solutions = folder_.model.solutions;
    for (uint32_t i = 0; i < solutions.size(); ++i) {
      const std::string& name = solutions[i].definition.name;
      if (!is_wanted(name)) continue;
      chosen_.push_back(i);
      for (const DefinitionAxis& axis : folder_.model.definition_of(solutions[i])->axes) {
        if (!axis.is_const) axes.insert(axis.name);
      }
    }
    for (const std::string& name : missing) {
      std::vector<std::string_view> known;
      for (const SolutionSpec& one : solutions) known.push_back(one.definition.name);
      const std::string_view meant = nearest_word(name, known);
      return tools::usage_error(
          command_, fmt::format("the folder has no solution for '{}'{}", tools::printable(name),
                                meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
    }
    for (const auto& [name, values] : options_.axes) {
      if (axes.count(name) != 0) continue;
      return tools::usage_error(command_,
                                fmt::format("no definition has a variable axis '{}'; there are {}",
                                            tools::printable(name), fmt::join(axes, ", ")));
    }
    if (!chosen_.empty()) return kExitFine;
    print_message(command_, "the folder has no solutions");
    return kExitWrong;
  }

  // Asks a worker what GPU there is: this process must stay without a driver.
  bool probe() {
    std::string fault = "the probe of the GPU said nothing";
    const auto ask = [&](bool copies) {
      return run_worker(
          [&](const Tell& tell) {
            auto gpu = Gpu::open(options_.trial.device);
            if (!gpu) return tell({{"fault", gpu.error().message}});
            const DeviceInfo& info = (*gpu)->info();
            Json message = {{"name", info.name},
                            {"uuid", info.uuid},
                            {"sm", info.sm},
                            {"driver", info.driver_version}};
            if (copies) {
              const auto rate = measure_copy_bandwidth(gpu->get());
              if (!rate) return tell({{"fault", rate.error().message}});
              message["copy"] = *rate;
            }
            tell(message);
          },
          [&](const Json& message) {
            if (message.contains("fault")) {
              fault = message["fault"].get<std::string>();
              return;
            }
            fault.clear();
            context_.device.name = message["name"].get<std::string>();
            context_.device.uuid = message["uuid"].get<std::string>();
            context_.device.sm = message["sm"].get<int>();
            context_.device.driver_version = message["driver"].get<int>();
            if (copies) context_.copy_bytes_per_second = message["copy"].get<double>();
          },
          kProbeTimeoutS);
    };
    WorkerEnd end = ask(false);
    if (fault.empty() && trial_.is_bench) {
      const GpuLock lock(context_.device.uuid, true, command_);
      end = ask(true);
    }
    if (fault.empty() && end.is_fine) return true;
    print_message(command_, tools::printable(end.is_fine ? fault : end.words + ": " + end.output));
    return false;
  }

  // Also after a worker has ended in the midst of a request.
  bool start_interpreter() {
    trial_.interpreter = nullptr;
    interpreter_.reset();
    if (trial_.python.empty()) return true;
    auto started = PythonInterpreter::start(trial_.python);
    if (!started) {
      print_message(command_, tools::printable(started.error().message));
      return false;
    }
    interpreter_ = std::move(*started);
    trial_.interpreter = interpreter_.get();
    return true;
  }

  void read_earlier() {
    if (options_.output.empty()) return;
    const Judged nobody{"x", "x", "x", "x", "", {}, {}, {}};
    const bool is_file = record_file(options_.output, nobody) == options_.output;
    std::vector<std::string> faults;
    const std::string path = is_file ? options_.output : options_.output + "/traces";
    for (Json& record : read_records(path, &faults)) {
      const std::string key = record_key(record);
      if (is_complete(record)) earlier_[key] = std::move(record);
    }
    for (const std::string& fault : faults) {
      print_message(command_, tools::printable(fault) + "; left out");
    }
  }

  void show_progress(const std::string& definition, const AxisValues& axes) {
    if (!shows_progress_) return;
    const std::string words =
        fmt::format("[{}/{}] {} {}", done_solutions_ + 1, chosen_.size(),
                    tools::printable(definition), tools::printable(tools::pairs_words(axes)));
    if (is_terminal_) {
      fmt::print(stderr, "\r\033[K{}", words);
    } else if (const time_t second = time(nullptr); second >= last_progress_ + kProgressS) {
      last_progress_ = second;
      print_message(command_, words);
    }
  }

  // Runs one solution in all cases, in as many workers as it takes. Calls `arrived` with each case whose outcome is known, in
  // their order, while others still run; not for those that are not run any more.
  using Arrived = std::function<void(size_t, const CaseOutcome&)>;
  std::vector<CaseOutcome> run_cases(
      const Folder& folder, uint32_t index, const std::vector<Workload>& cases,
      const Arrived& arrived = [](size_t, const CaseOutcome&) {}) {
    std::vector<CaseOutcome> outcomes(cases.size());
    const SolutionSpec& solution = folder.model.solutions[index];
    const auto fail_from = [&](size_t first, const std::string& status, const std::string& why) {
      for (size_t i = first; i < cases.size(); ++i) {
        outcomes[i] = CaseOutcome();
        outcomes[i].status = status;
        outcomes[i].log = why;
      }
    };
    const GpuLock lock(context_.device.uuid, trial_.is_bench, command_);
    int failures = 0;
    for (size_t next = 0; next < cases.size();) {
      if (failures == kMostFailures) {
        fail_from(next, kRuntimeError,
                  fmt::format("not run: the solution failed {} times", failures));
        break;
      }
      size_t active = cases.size();
      bool is_refused = false;
      const auto body = [&](const Tell& tell) {
        auto gpu = Gpu::open(trial_.device);
        if (!gpu) return tell({{"refused", gpu.error().message}});
        auto trial = Trial::make(gpu->get(), folder, index, trial_);
        if (!trial) {
          return tell({{"refused", trial.error().message},
                       {"is_other_gpu", trial.error().code == ErrorCode::no_binary_for_gpu}});
        }
        for (size_t i = next; i < cases.size(); ++i) {
          tell({{"case", i}});
          const CaseOutcome outcome = (*trial)->judge(cases[i]);
          tell({{"case", i}, {"outcome", to_json(outcome)}});
          if (outcome.is_gpu_lost) break;
        }
      };
      const auto listen = [&](const Json& message) {
        if (message.contains("refused")) {
          is_refused = true;
          const bool is_other_gpu = message.value("is_other_gpu", false);
          fail_from(next, is_other_gpu ? kSkipped : kRuntimeError,
                    message["refused"].get<std::string>());
          return;
        }
        const auto at = message["case"].get<size_t>();
        active = at;
        if (!message.contains("outcome")) {
          show_progress(solution.definition.name, cases[at].axes);
          return;
        }
        outcomes[at] = outcome_from_json(message["outcome"]);
        arrived(at, outcomes[at]);
      };
      const WorkerEnd end = run_worker(body, listen, options_.timeout_s);
      if (!end.is_fine && !start_interpreter()) {
        fail_from(next, kRuntimeError, "the interpreter does not start again");
        break;
      }
      if (is_refused) break;
      if (active == cases.size()) {
        fail_from(next, end.is_timed_out ? kTimeout : kRuntimeError, end.words + ": " + end.output);
        break;
      }
      if (outcomes[active].status.empty()) {
        std::string why = end.is_fine ? "the worker ended early" : end.words;
        const size_t kept = std::min(end.output.size(), kLoggedOutput);
        if (kept > 0) why += ": " + end.output.substr(end.output.size() - kept);
        while (why.ends_with('\n')) why.pop_back();
        const bool was_original = end.output.ends_with(kOriginalRuns);
        outcomes[active].status = was_original       ? kNotJudged
                                  : end.is_timed_out ? kTimeout
                                                     : kRuntimeError;
        outcomes[active].is_gpu_lost = true;
        outcomes[active].log = why;
        arrived(active, outcomes[active]);
      }
      const bool has_failed =
          outcomes[active].status == kRuntimeError || outcomes[active].is_gpu_lost;
      if (!has_failed && active + 1 < cases.size() && end.is_fine) {
        fail_from(active + 1, kRuntimeError, "the worker ended early");
        break;
      }
      if (has_failed) ++failures;
      next = active + 1;
    }
    return outcomes;
  }

  // The baseline's solutions of a definition, in the order of trial.
  std::vector<uint32_t> find_rivals(const Definition& definition) const {
    std::vector<uint32_t> found;
    const auto& solutions = baseline_.model.solutions;
    for (uint32_t i = 0; !options_.baseline.empty() && i < solutions.size(); ++i) {
      if (solutions[i].definition.name == definition.name.name) found.push_back(i);
    }
    std::ranges::sort(
        found, [&](uint32_t a, uint32_t b) { return is_tried_before(solutions[a], solutions[b]); });
    return found;
  }

  // Of each case the first that is for it.
  struct Rival {
    std::string solution;  // "": there is none
    CaseOutcome outcome;
  };
  std::vector<Rival> run_rivals(const std::vector<uint32_t>& solutions,
                                const std::vector<Workload>& cases) {
    std::vector<Rival> rivals(cases.size());
    for (const uint32_t solution : solutions) {
      std::vector<Workload> open;
      std::vector<size_t> places;
      for (size_t i = 0; i < cases.size(); ++i) {
        if (!rivals[i].solution.empty() && rivals[i].outcome.status != kSkipped) continue;
        open.push_back(cases[i]);
        places.push_back(i);
      }
      const std::vector<CaseOutcome> outcomes = run_cases(baseline_, solution, open);
      for (size_t i = 0; i < places.size(); ++i) {
        rivals[places[i]] = {baseline_.model.solutions[solution].name.name, outcomes[i]};
      }
    }
    return rivals;
  }

  bool judge_solution(uint32_t index) {
    const SolutionSpec& solution = folder_.model.solutions[index];
    const Definition& definition = *folder_.model.definition_of(solution);
    const VerifyBlock& verify = folder_.verify_blocks.of(solution);
    const Subject subject{&definition, &solution, &verify, find_op(definition, verify.op)};
    const auto recorded = workloads_.find(definition.name.name);
    std::vector<Workload> all;
    std::string why_none;
    if (options_.originals.empty()) {
      all = make_cases(subject, options_,
                       recorded == workloads_.end() ? std::vector<Workload>() : recorded->second,
                       &why_none);
    } else {
      all = original_cases(
          {folder_.model, *folder_.report.snapshot, folder_.recorded, options_.originals}, index,
          &why_none);
    }

    const std::vector<uint32_t> all_rivals = find_rivals(definition);
    Judged judged{definition.name.name,
                  definition.op_type,
                  solution.name.name,
                  solution.author,
                  images_digest(folder_.model, solution),
                  {},
                  {},
                  {}};
    if (!options_.baseline.empty() && all_rivals.empty()) {
      print_message(command_, fmt::format("{} has no solution for {}", options_.baseline,
                                          tools::printable(definition.name.name)));
    }
    if (all.empty() && !why_none.empty()) {
      judged.outcome.status = kNotJudged;
      judged.outcome.log = why_none;
      context_.timestamp = now();
      records_.push_back(make_record(judged, context_));
    }
    std::vector<Workload> cases;
    for (const Workload& workload : all) {
      judged.workload = workload;
      const auto known = earlier_.find(record_key(judged, context_));
      if (known == earlier_.end()) {
        cases.push_back(workload);
      } else {
        records_.push_back(known->second);
        ++resumed_;
      }
    }
    const std::vector<Rival> rivals = run_rivals(all_rivals, cases);
    size_t kept = 0;
    bool is_written = true;
    const auto keep = [&](size_t i, const CaseOutcome& outcome) {
      ++kept;
      judged.workload = cases[i];
      judged.outcome = outcome;
      const CaseOutcome& rival = rivals[i].outcome;
      const bool is_timed = is_right_or_unjudged(rival);
      judged.baseline = {rivals[i].solution, is_timed ? rival.latency_ms : 0};
      if (outcome.original_ms > 0) {
        judged.baseline = {cases[i].original->pattern, outcome.original_ms};
      }
      if (!rivals[i].solution.empty() && !is_timed) {
        print_message(command_, tools::printable(fmt::format(
                                    "baseline {} ({}): {}: {}", rivals[i].solution,
                                    tools::pairs_words(cases[i].axes), rival.status, rival.log)));
      }
      context_.timestamp = now();
      Json record = make_record(judged, context_);
      if (record.is_null()) {
        ++skipped_;
        skips_.insert(fmt::format("{}: {}", solution.name.name, outcome.log));
        return;
      }
      // FlashInfer Trace has no status for what nobody has judged.
      if (!options_.output.empty() && outcome.status != kNotJudged && is_written) {
        const auto written = append_record(record_file(options_.output, judged), record);
        is_written = written.has_value();
        if (!written) print_message(command_, written.error().message);
      }
      records_.push_back(std::move(record));
    };
    const std::vector<CaseOutcome> outcomes = run_cases(folder_, index, cases, keep);
    tolerances_.add(index, outcomes);
    while (kept < cases.size()) keep(kept, outcomes[kept]);
    ++done_solutions_;
    return is_written;
  }

  int keep_from_file() {
    if (const int code = choose_solutions(); code != kExitFine) return code;
    if (!kept_.read(folder_.model, command_) ||
        !kept_.add_from(options_.kept_from, folder_.model, chosen_, command_)) {
      return kExitWrong;
    }
    report_kept();
    const bool is_written =
        !options_.wants_json || tools::print_json({{"version", 1}, {"kept", kept_.count()}});
    return is_written ? kExitFine : kExitWrong;
  }

  void report_kept() const {
    if (options_.is_quiet) return;
    print_message(command_, fmt::format("{} kept in {}", tools::counted(kept_.count(), "time"),
                                        tools::printable(kMeasurementsFile)));
  }

  int report() {
    if (options_.keeps) report_kept();
    if (!options_.is_quiet) {
      for (const std::string& skip : skips_) print_message(command_, tools::printable(skip));
      if (resumed_ > 0) {
        print_message(command_, fmt::format("{} cases were recorded before and not run again; "
                                            "remove {} to run all",
                                            resumed_, options_.output));
      }
    }
    bool is_written = false;
    const bool has_tolerances = !options_.tolerances.empty();
    if (has_tolerances) tolerances_.propose(folder_.model, options_.tolerances == "write");
    if (options_.wants_json) {
      Json document;
      document["version"] = 1;
      document["mode"] = context_.mode;
      document["device"] = device_to_json(context_.device, trial_.device);
      document["device"]["copy_gigabytes_per_second"] = context_.copy_bytes_per_second / 1e9;
      document["skipped"] = skipped_;
      document["not_judged"] = count_status(kNotJudged);
      document["records"] = records_;
      if (has_tolerances) document["tolerances"] = tolerances_.json();
      is_written = tools::print_json(document);
    } else {
      std::string text = fmt::format("device {}: {}, sm_{}, driver for CUDA {}\n", trial_.device,
                                     tools::printable(context_.device.name), context_.device.sm,
                                     cuda_version(context_.device.driver_version));
      text += format_records(records_, trial_.is_bench);
      if (trial_.is_bench && context_.copy_bytes_per_second > 0) {
        text +=
            fmt::format("copy on this GPU: {:.0f} GB/s\n", context_.copy_bytes_per_second / 1e9);
      }
      text += format_verdict(records_, skipped_, trial_.is_bench);
      if (has_tolerances) text += tolerances_.text();
      is_written = tools::print_data(text);
    }
    const size_t judged = records_.size() - count_status(kNotJudged);
    if (judged == 0) print_message(command_, "nothing was judged");
    const bool has_all = !has_tolerances || tolerances_.has_any();
    return is_written && has_all && judged > 0 && count_status(kPassed) == judged ? kExitFine
                                                                                  : kExitWrong;
  }

  size_t count_status(const char* status) const {
    return static_cast<size_t>(std::ranges::count_if(
        records_, [&](const Json& record) { return record["evaluation"]["status"] == status; }));
  }

  const JudgeOptions& options_;
  const char* const command_;
  const bool shows_progress_, is_terminal_;
  time_t last_progress_ = time(nullptr);
  std::unique_ptr<PythonInterpreter> interpreter_;
  TrialOptions trial_;
  Folder folder_, baseline_;
  Workloads workloads_;
  std::vector<uint32_t> chosen_;
  RecordContext context_;
  std::map<std::string, Json> earlier_;  // by record_key
  std::vector<Json> records_;
  KeptTimes kept_;
  ProposedTolerances tolerances_;
  std::set<std::string> skips_;
  size_t skipped_ = 0, resumed_ = 0, done_solutions_ = 0;
};

}  // namespace

int run_judge(const JudgeOptions& options) { return Judge(options).run(); }

}  // namespace fibshim::judge
