#include "tools/record/comparison.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

using Kernels = std::map<std::string, ComparedKernel>;

Kernels kernels_of(const Recording& recording) {
  Kernels out;
  std::map<std::string, Times> times;
  for (const KernelRecord& kernel : recording.kernels) {
    ComparedKernel& one = out[kernel.symbol];
    const uint64_t replayed = kernel.all_runs(true).count();
    one.launches = saturating_add(one.launches, kernel.launches);
    one.nodes = saturating_add(one.nodes, kernel.nodes);
    one.replayed = saturating_add(one.replayed, replayed);
    one.runs = saturating_add(one.runs, saturating_add(replayed, kernel.all_runs(false).count()));
    one.ns += kernel.estimated_ns();
    times[kernel.symbol].add(kernel.times());
    for (const auto& [geometry, counts] : kernel.geometries) one.shapes.insert(geometry);
    if (kernel.other.launches != 0 || kernel.other.nodes != 0) one.has_all_shapes = false;
    if (!kernel.only_ran()) continue;
    for (const auto& [key, runs] : kernel.runs) one.shapes.insert(key.first);
    if (one.shapes.erase(Geometry{}) != 0) one.has_all_shapes = false;
  }
  for (auto& [symbol, one] : out) {
    const Times& all = times[symbol];
    if (all.count == 0) continue;
    one.mean_ns = static_cast<double>(all.sum_ns) / static_cast<double>(all.count);
  }
  return out;
}

bool is_further_apart(double a, double b, double percent) {
  return a > 0 && b > 0 && std::max(a, b) > std::min(a, b) * (1 + percent / 100);
}

// Nothing where `there` had no room for all of its shapes.
std::vector<Geometry> only_in(const ComparedKernel& here, const ComparedKernel& there) {
  std::vector<Geometry> out;
  if (!there.has_all_shapes) return out;
  std::ranges::set_difference(here.shapes, there.shapes, std::back_inserter(out));
  return out;
}

std::string shape_text(const Geometry& shape) {
  std::string out = fmt::format("{}x{}x{} of {}x{}x{}", shape[0], shape[1], shape[2], shape[3],
                                shape[4], shape[5]);
  if (shape[6] * shape[7] * shape[8] > 1) {
    out += fmt::format(", clusters {}x{}x{}", shape[6], shape[7], shape[8]);
  }
  return shape[9] == 0 ? out : out + fmt::format(", {} bytes", shape[9]);
}

nlohmann::ordered_json shapes_json(const std::vector<Geometry>& shapes) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Geometry& shape : shapes) {
    out.push_back({{"grid", {shape[0], shape[1], shape[2]}},
                   {"block", {shape[3], shape[4], shape[5]}},
                   {"cluster", {shape[6], shape[7], shape[8]}},
                   {"shared_mem", shape[9]}});
  }
  return out;
}

std::string shapes_text(const std::vector<Geometry>& shapes) {
  constexpr size_t kMostShown = 3;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(kMostShown, shapes.size()); ++i) {
    words.push_back(shape_text(shapes[i]));
  }
  if (shapes.size() > kMostShown) words.push_back(fmt::format("{} more", shapes.size() - 3));
  return words.empty() ? "-" : fmt::format("{}", fmt::join(words, "; "));
}

nlohmann::ordered_json kernel_json(const ComparedKernel& kernel) {
  return {{"launches", kernel.launches},
          {"in_graph", kernel.nodes},
          {"ran", kernel.runs},
          {"replayed", kernel.replayed},
          {"gpu_us", kernel.ns / 1e3},
          {"mean_us", kernel.mean_ns > 0 ? nlohmann::ordered_json(kernel.mean_ns / 1e3)
                                         : nlohmann::ordered_json()}};
}

std::string name_of(const std::string& symbol) { return printable(function_name(symbol)); }

std::string milliseconds(double ns) { return ns > 0 ? fmt::format("{:.3f}", ns / 1e6) : "-"; }
std::string counts_cell(uint64_t a, uint64_t b) {
  return a == b ? fmt::format("{}", a) : fmt::format("{} -> {}", a, b);
}

using Table = std::vector<std::vector<std::string>>;

// "" if the table has only a heading.
std::string titled(const std::string& title, const Table& table) {
  return table.size() == 1 ? "" : fmt::format("{}\n{}\n", title, format_table(table));
}

std::string only_text(const char* where,
                      const std::vector<std::pair<std::string, ComparedKernel>>& kernels) {
  Table table = {{">GPU ms", ">LAUNCHES", ">IN GRAPHS", ">REPLAYED", "KERNEL"}};
  for (const auto& [symbol, kernel] : kernels) {
    table.push_back({milliseconds(kernel.ns), fmt::format("{}", kernel.launches),
                     fmt::format("{}", kernel.nodes), fmt::format("{}", kernel.replayed),
                     name_of(symbol)});
  }
  return titled(fmt::format("only in {}", where), table);
}

}  // namespace

Comparison compare_recordings(const Recording& a, const Recording& b, double tolerance_percent) {
  Comparison out{{}, {}, {}, tolerance_percent, a.kernels_left_out, b.kernels_left_out};
  // Without CUPTI no runs are known, nor are kernels that the host did not launch.
  const bool have_runs = a.runs() > 0 && b.runs() > 0;
  const auto is_known_by_runs = [](const ComparedKernel& one) {
    return one.runs > 0 && one.launches == 0 && one.nodes == 0;
  };
  const Kernels in_a = kernels_of(a);
  const Kernels in_b = kernels_of(b);
  for (const auto& [symbol, one] : in_a) {
    const auto other = in_b.find(symbol);
    if (other == in_b.end()) {
      if (have_runs || !is_known_by_runs(one)) out.only_in_a.emplace_back(symbol, one);
      continue;
    }
    const ComparedKernel& two = other->second;
    KernelDifference difference{
        symbol,
        one,
        two,
        only_in(one, two),
        only_in(two, one),
        one.launches != two.launches || one.nodes != two.nodes ||
            (have_runs && (one.runs != two.runs || one.replayed != two.replayed)),
        is_further_apart(one.mean_ns, two.mean_ns, tolerance_percent)};
    if (difference.has_other_shapes() || difference.has_other_counts ||
        difference.has_other_times) {
      out.differences.push_back(std::move(difference));
    }
  }
  for (const auto& [symbol, one] : in_b) {
    if (in_a.contains(symbol) || (!have_runs && is_known_by_runs(one))) continue;
    out.only_in_b.emplace_back(symbol, one);
  }
  const auto by_time = [](const auto& x, const auto& y) { return x.second.ns > y.second.ns; };
  std::ranges::stable_sort(out.only_in_a, by_time);
  std::ranges::stable_sort(out.only_in_b, by_time);
  std::ranges::stable_sort(out.differences, [](const auto& x, const auto& y) {
    return std::max(x.a.ns, x.b.ns) > std::max(y.a.ns, y.b.ns);
  });
  return out;
}

std::string comparison_text(const Comparison& comparison) {
  if (comparison.is_equal()) {
    return fmt::format("no difference; times within {:g} %\n", comparison.tolerance_percent);
  }
  Table shapes = {{"ONLY IN A", "ONLY IN B", "KERNEL"}};
  Table counts = {{">LAUNCHES", ">IN GRAPHS", ">RAN", ">REPLAYED", "KERNEL"}};
  Table times = {{">A us", ">B us", ">CHANGE", "KERNEL"}};
  for (const KernelDifference& one : comparison.differences) {
    const std::string name = name_of(one.symbol);
    if (one.has_other_shapes()) {
      shapes.push_back(
          {shapes_text(one.shapes_only_in_a), shapes_text(one.shapes_only_in_b), name});
    }
    if (one.has_other_counts) {
      counts.push_back({counts_cell(one.a.launches, one.b.launches),
                        counts_cell(one.a.nodes, one.b.nodes), counts_cell(one.a.runs, one.b.runs),
                        counts_cell(one.a.replayed, one.b.replayed), name});
    }
    if (one.has_other_times) {
      times.push_back({fmt::format("{:.2f}", one.a.mean_ns / 1e3),
                       fmt::format("{:.2f}", one.b.mean_ns / 1e3),
                       fmt::format("{:+.1f}%", (one.b.mean_ns / one.a.mean_ns - 1) * 100), name});
    }
  }
  std::string out =
      only_text("A", comparison.only_in_a) + only_text("B", comparison.only_in_b) +
      titled("other shapes", shapes) + titled("other counts, A -> B", counts) +
      titled(fmt::format("means further apart than {:g} %", comparison.tolerance_percent), times);
  out.pop_back();  // the blank line between tables
  return out;
}

nlohmann::ordered_json comparison_json(const Comparison& comparison) {
  nlohmann::ordered_json out = {
      {"version", 1},
      {"equal", comparison.is_equal()},
      {"tolerance_percent", comparison.tolerance_percent},
      {"kernels_left_out", {{"a", comparison.left_out_of_a}, {"b", comparison.left_out_of_b}}}};
  const auto only = [](const auto& kernels) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const auto& [symbol, kernel] : kernels) {
      nlohmann::ordered_json one = kernel_json(kernel);
      one["symbol"] = symbol;
      all.push_back(std::move(one));
    }
    return all;
  };
  out["only_in_a"] = only(comparison.only_in_a);
  out["only_in_b"] = only(comparison.only_in_b);
  out["differences"] = nlohmann::ordered_json::array();
  for (const KernelDifference& one : comparison.differences) {
    nlohmann::ordered_json differs = nlohmann::ordered_json::array();
    if (one.has_other_shapes()) differs.push_back("shapes");
    if (one.has_other_counts) differs.push_back("counts");
    if (one.has_other_times) differs.push_back("times");
    out["differences"].push_back({{"symbol", one.symbol},
                                  {"differs", differs},
                                  {"a", kernel_json(one.a)},
                                  {"b", kernel_json(one.b)},
                                  {"shapes_only_in_a", shapes_json(one.shapes_only_in_a)},
                                  {"shapes_only_in_b", shapes_json(one.shapes_only_in_b)}});
  }
  return out;
}

}  // namespace fibshim::tools
