#include "tools/counters/prometheus.h"

#include "tools/base/terminal.h"
#include "tools/counters/folders_in_force.h"
#include "tools/counters/kept_nodes.h"
#include "tools/counters/shadow_counts.h"

namespace fibshim::tools {
namespace {

std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '\\': out += "\\\\"; break;
      case '"': out += "\\\""; break;
      case '\n': out += "\\n"; break;
      default: out += c;
    }
  }
  return out;
}

// The series of one metric, at most `max_count`, in the order in which they were first seen.
class Series {
 public:
  explicit Series(size_t max_count) : max_count_(max_count) {}

  // Adds the count under `labels`, or under `other` if there is no room for another series.
  void add(const std::string& labels, const std::string& other, uint64_t count) {
    const bool fits = places_.contains(labels) || places_.size() < max_count_;
    if (!fits) ++folded_count_;
    const std::string& name = fits ? labels : other;
    const auto [place, is_new] = (fits ? places_ : others_).emplace(name, rows_.size());
    if (is_new) rows_.push_back({name, 0});
    uint64_t& sum = rows_[place->second].count;
    sum = saturating_add(sum, count);
  }

  std::string text(const char* metric) const {
    std::string out;
    for (const Row& row : rows_) out += fmt::format("{}{{{}}} {}\n", metric, row.labels, row.count);
    return out;
  }

  size_t folded_count() const { return folded_count_; }

 private:
  struct Row {
    std::string labels;
    uint64_t count;
  };
  size_t max_count_;
  size_t folded_count_ = 0;
  std::vector<Row> rows_;
  std::map<std::string, size_t> places_, others_;
};

std::string launch_labels(const std::string& definition, const std::string& pattern,
                          uint32_t outcome, const std::string& config, int32_t device,
                          const std::string& solution = "") {
  return fmt::format(
      "definition=\"{}\",pattern=\"{}\",outcome=\"{}\",config=\"{}\",device=\"{}\"{}",
      label_value(definition), label_value(pattern), outcome_name(outcome), label_value(config),
      device < 0 ? "" : fmt::format("{}", device),
      solution.empty() ? "" : fmt::format(",solution=\"{}\"", label_value(solution)));
}

// Without them a counter would fall when the counters of an ended process are deleted, which Prometheus takes for a restart.
std::string process_labels(const ProcessCounters& process) {
  return fmt::format(",pid=\"{}\",start_time=\"{}\"", process.pid, process.start_time);
}

// `number`: the member of LaunchNumbers to export.
Series launch_series(const std::vector<const ProcessCounters*>& processes, size_t max_series,
                     uint64_t LaunchNumbers::*number) {
  Series out(max_series);
  for (const ProcessCounters* process : processes) {
    const std::string suffix = process_labels(*process);
    for (const Count& count : process->counts) {
      if (count.numbers.*number == 0) continue;
      const bool has_config = !count.pattern.empty() && count.config < process->configs.size();
      out.add(launch_labels(count.definition, count.pattern, count.outcome,
                            has_config ? process->configs[count.config].path : "", count.device,
                            count.solution) +
                  suffix,
              launch_labels("(other)", "(other)", count.outcome, "", -1) + suffix,
              count.numbers.*number);
    }
  }
  return out;
}

// Graph nodes that keep their original, by reason.
Series kept_series(const std::vector<const ProcessCounters*>& processes, size_t max_series) {
  Series out(max_series);
  const auto labels = [](const std::string& definition, const std::string& pattern,
                         uint32_t reason) {
    return fmt::format("definition=\"{}\",pattern=\"{}\",reason=\"{}\"", label_value(definition),
                       label_value(pattern), reason_name(reason));
  };
  for (const ProcessCounters* process : processes) {
    const std::string suffix = process_labels(*process);
    for (const KeptNodes& kept : process->kept) {
      out.add(labels(kept.definition, kept.pattern, kept.reason) + suffix,
              labels("(other)", "(other)", kept.reason) + suffix, kept.number);
    }
  }
  return out;
}

// The number of live processes of each config folder.
Series config_series(const std::vector<const ProcessCounters*>& processes, size_t max_series) {
  Series out(max_series);
  for (const ProcessCounters* process : processes) {
    const ConfigIdentity& config = process->folder.config;
    if (!process->is_alive || process->folder.state != FolderState::on || config.path.empty())
      continue;
    out.add(fmt::format("config=\"{}\",digest=\"{}\"", label_value(config.path), config.digest),
            "config=\"(other)\",digest=\"\"", 1);
  }
  return out;
}

constexpr char kOtherShadow[] = "definition=\"(other)\",solution=\"\",shape=\"\"";
std::string shadow_labels(const ShadowKey& key, const std::string& more) {
  return fmt::format("definition=\"{}\",solution=\"{}\",shape=\"{}\"{}",
                     label_value(key.definition), label_value(key.solution), label_value(key.shape),
                     more);
}

// What the shadow checks of one process have found.
struct CheckedProcess {
  std::string labels;
  ShadowSums sums;
};

// One of a shadow check's numbers, by definition, solution, shape and process.
template <class NumberOf>
Series shadow_series(const std::vector<CheckedProcess>& checked, size_t max_series,
                     const NumberOf& number_of) {
  Series out(max_series);
  for (const CheckedProcess& process : checked) {
    for (const auto& sum : process.sums) {
      const auto& key = sum.first;  // clang 14 cannot capture a structured binding in a lambda
      number_of(sum.second, [&](const std::string& more, uint64_t number) {
        const std::string labels = more + process.labels;
        out.add(shadow_labels(key, labels), kOtherShadow + labels, number);
      });
    }
  }
  return out;
}

// The largest value of one of a shadow check's numbers, by definition, solution, shape and process.
std::string largest_shadow(const char* metric, const std::vector<CheckedProcess>& checked,
                           size_t max_series, double ShadowNumbers::*number) {
  std::map<std::string, double> largest;
  for (const CheckedProcess& process : checked) {
    for (const auto& [key, numbers] : process.sums) {
      std::string labels = shadow_labels(key, process.labels);
      if (largest.size() >= max_series && !largest.contains(labels)) {
        labels = kOtherShadow + process.labels;
      }
      double& most = largest[labels];
      most = std::max(most, numbers.*number);
    }
  }
  std::string out;
  for (const auto& [labels, most] : largest) {
    out += fmt::format("{}{{{}}} {}\n", metric, labels, most);
  }
  return out;
}

std::string head(const char* metric, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric, help, metric, type);
}

}  // namespace

std::string prometheus_text(const CountersFolder& folder, const PrometheusOptions& options) {
  // The oldest process first, so that new processes do not push existing series into "(other)".
  std::vector<const ProcessCounters*> processes;
  for (const ProcessCounters& process : folder.processes) processes.push_back(&process);
  std::ranges::stable_sort(processes, {}, &ProcessCounters::created_unix_ns);
  const auto live = std::ranges::count_if(processes, &ProcessCounters::is_alive);
  const auto ended = static_cast<std::ptrdiff_t>(processes.size()) - live;
  const Series launches = launch_series(processes, options.max_series, &LaunchNumbers::launches);
  const Series executions =
      launch_series(processes, options.max_series, &LaunchNumbers::executions);
  const Series body_nodes =
      launch_series(processes, options.max_series, &LaunchNumbers::body_nodes);

  std::string out =
      head("fibshim_launches_total", "counter",
           "Kernel launches and nodes of instantiated graphs, by what happened to them.");
  out += launches.text("fibshim_launches_total");
  out += head("fibshim_executions_total", "counter",
              "Kernels that have run: a launch's once, a graph node's each time that its graph was "
              "launched.");
  out += executions.text("fibshim_executions_total");
  out += head("fibshim_body_nodes_total", "counter",
              "Kernel nodes in bodies of conditional nodes of instantiated graphs, which run as "
              "often as the device "
              "decides.");
  out += body_nodes.text("fibshim_body_nodes_total");
  out +=
      head("fibshim_kept_nodes_total", "counter",
           "Nodes of graphs that keep their original (fallback_graph), by reason, each time that "
           "this was found.");
  out += kept_series(processes, options.max_series).text("fibshim_kept_nodes_total");
  out += head("fibshim_folded_counts", "gauge",
              "Counts without a series of their own: they are in definition=\"(other)\".");
  out += fmt::format("fibshim_folded_counts {}\n", launches.folded_count());
  out += head("fibshim_processes", "gauge", "Processes that have written counters.");
  out += fmt::format(
      "fibshim_processes{{state=\"live\"}} {}\nfibshim_processes{{state=\"ended\"}} {}\n", live,
      ended);
  std::vector<CheckedProcess> checked;
  for (const ProcessCounters* process : processes) {
    checked.push_back({process_labels(*process), shadow_sums_of({*process})});
  }
  out += head("fibshim_shadow_checks_total", "counter",
              "Launches whose solution was compared with the original (FIBSHIM_SHADOW).");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        add("", numbers.checks);
      }).text("fibshim_shadow_checks_total");
  out += head("fibshim_shadow_mismatches_total", "counter",
              "Those whose solution was further from the original than it may be.");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        add("", numbers.mismatches);
      }).text("fibshim_shadow_mismatches_total");
  out += head("fibshim_shadow_not_checked_total", "counter",
              "Launches that were to be compared and were not, by reason.");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        for (uint32_t i = 1; i < kShadowMisses; ++i) {
          if (numbers.not_checked[i] == 0) continue;
          add(fmt::format(",reason=\"{}\"", kShadowMissNames[i]), numbers.not_checked[i]);
        }
      }).text("fibshim_shadow_not_checked_total");
  out += head("fibshim_shadow_elements_total", "counter", "Elements that they compared.");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        add("", numbers.elements);
      }).text("fibshim_shadow_elements_total");
  out += head("fibshim_shadow_wrong_elements_total", "counter",
              "Those that were further from the original's than they may be.");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        add("", numbers.wrong_elements);
      }).text("fibshim_shadow_wrong_elements_total");
  out += head("fibshim_shadow_not_finite_total", "counter",
              "NaNs and infinities that solutions wrote, by kind.");
  out +=
      shadow_series(checked, options.max_series, [](const ShadowNumbers& numbers, const auto& add) {
        add(",kind=\"nan\"", numbers.nans);
        add(",kind=\"inf\"", numbers.infinities);
      }).text("fibshim_shadow_not_finite_total");
  out += head("fibshim_shadow_largest_difference", "gauge",
              "The largest difference of a finite element from the original's.");
  out += largest_shadow("fibshim_shadow_largest_difference", checked, options.max_series,
                        &ShadowNumbers::largest_difference);
  out += head("fibshim_shadow_largest_mean_difference", "gauge",
              "The largest mean difference of one comparison.");
  out += largest_shadow("fibshim_shadow_largest_mean_difference", checked, options.max_series,
                        &ShadowNumbers::largest_mean);
  // A histogram has all of its buckets, and its count, or is among the others.
  const size_t histograms = std::max<size_t>(options.max_series / kShadowBuckets, 1);
  out += head("fibshim_shadow_worst_of_tolerance", "histogram",
              "Comparisons by how far off the worst element was, as a share of what it may be. "
              "Without a sum.");
  out +=
      shadow_series(checked, histograms * kShadowBuckets,
                    [](const ShadowNumbers& numbers, const auto& add) {
                      uint64_t sum = 0;
                      for (uint32_t i = 0; i < kShadowBuckets; ++i) {
                        sum = saturating_add(sum, numbers.buckets[i]);
                        add(i + 1 == kShadowBuckets ? std::string(",le=\"+Inf\"")
                                                    : fmt::format(",le=\"{}\"", kShadowBounds[i]),
                            sum);
                      }
                    })
          .text("fibshim_shadow_worst_of_tolerance_bucket");
  out += shadow_series(checked, histograms, [](const ShadowNumbers& numbers, const auto& add) {
           uint64_t sum = 0;
           for (const uint64_t checks : numbers.buckets) sum = saturating_add(sum, checks);
           add("", sum);
         }).text("fibshim_shadow_worst_of_tolerance_count");
  const FolderTotals totals = folder_totals(folder.processes);
  out +=
      head("fibshim_folder_processes", "gauge", "Live processes, by what became of their folder.");
  for (const auto& [state, count] : totals.process_counts) {
    out += fmt::format("fibshim_folder_processes{{state=\"{}\"}} {}\n", folder_state_name(state),
                       count);
  }
  out += head("fibshim_config_processes", "gauge", "Live processes, by config folder.");
  out += config_series(processes, options.max_series).text("fibshim_config_processes");
  const auto gauge = [&out](const char* metric, const char* help, uint64_t value) {
    out += head(metric, "gauge", help) + fmt::format("{} {}\n", metric, value);
  };
  const auto gauge_of_images = [&out](const char* metric, const char* help, uint64_t all,
                                      uint64_t kept) {
    out += head(metric, "gauge", help);
    out += fmt::format("{0}{{state=\"in_force\"}} {1}\n{0}{{state=\"kept\"}} {2}\n", metric,
                       all - std::min(all, kept), kept);
  };
  gauge("fibshim_folder_moves", "Moves of live processes to another config folder.",
        totals.swap_count);
  gauge("fibshim_folder_refusals",
        "Config folders that live processes were to move to and refused.", totals.refused_count);
  gauge_of_images(
      "fibshim_loaded_images",
      "Images that live processes have loaded; kept: for folders before the one in force.",
      totals.image_count, totals.kept_image_count);
  gauge_of_images("fibshim_loaded_image_bytes", "Sizes of their files.", totals.image_bytes,
                  totals.kept_image_bytes);
  gauge("fibshim_refused_files", "Counters files that could not be read.", folder.refused.size());
  out += head("fibshim_build_info", "gauge", "The version of the fibshim that wrote this.");
  out += fmt::format("fibshim_build_info{{version=\"{}\"}} 1\n", kVersion);
  return out;
}

}  // namespace fibshim::tools
