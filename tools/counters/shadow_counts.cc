#include "tools/counters/shadow_counts.h"

#include <nlohmann/json.hpp>

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

// Why launches were not checked: "size 3, busy 1"; empty if all were.
std::string reasons_of(const ShadowNumbers& numbers) {
  std::string out;
  for (uint32_t i = 1; i < kShadowMisses; ++i) {
    if (numbers.not_checked[i] == 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", kShadowMissNames[i],
                       numbers.not_checked[i]);
  }
  return out;
}

// Checks by the error of their worst element, as a share of the tolerance: "<=0.1: 9, >10: 1"; "-"
// without checks.
std::string histogram_of(const ShadowNumbers& numbers) {
  std::string out;
  for (uint32_t i = 0; i < kShadowBuckets; ++i) {
    if (numbers.buckets[i] == 0) continue;
    const bool is_last = i + 1 == kShadowBuckets;
    out += fmt::format("{}{}{:g}: {}", out.empty() ? "" : ", ",
                       is_last  ? ">"
                       : i == 0 ? ""
                                : "<=",
                       kShadowBounds[is_last ? i - 1 : i], numbers.buckets[i]);
  }
  return out.empty() ? "-" : out;
}

}  // namespace

void add(const ShadowNumbers& more, ShadowNumbers* sum) {
  const auto add_to = [](uint64_t* to, uint64_t number) { *to = saturating_add(*to, number); };
  add_to(&sum->checks, more.checks);
  add_to(&sum->mismatches, more.mismatches);
  for (uint32_t i = 0; i < kShadowMisses; ++i) {
    add_to(&sum->not_checked[i], more.not_checked[i]);
  }
  add_to(&sum->elements, more.elements);
  add_to(&sum->wrong_elements, more.wrong_elements);
  add_to(&sum->nans, more.nans);
  add_to(&sum->infinities, more.infinities);
  sum->largest_difference = std::max(sum->largest_difference, more.largest_difference);
  sum->largest_mean = std::max(sum->largest_mean, more.largest_mean);
  for (uint32_t i = 0; i < kShadowBuckets; ++i) add_to(&sum->buckets[i], more.buckets[i]);
}

ShadowSums shadow_sums_of(const std::vector<ProcessCounters>& processes) {
  ShadowSums out;
  for (const ProcessCounters& process : processes) {
    for (const ShadowCount& count : process.shadow) {
      add(count.numbers, &out[{count.definition, count.solution, count.pattern, count.shape}]);
    }
  }
  return out;
}

std::string shadow_table(const ShadowSums& sums) {
  if (sums.empty()) return "";
  std::vector<std::vector<std::string>> table = {{"CHECKED", "SOLUTION", "SHAPE", ">CHECKS",
                                                  ">MISMATCHES", ">LARGEST DIFFERENCE",
                                                  "WORST OF TOLERANCE", "NOT CHECKED"}};
  for (const auto& [key, numbers] : sums) {
    const std::string reasons = reasons_of(numbers);
    table.push_back({printable(key.definition), printable(key.solution),
                     key.shape.empty() ? "-" : printable(key.shape),
                     fmt::format("{}", numbers.checks), fmt::format("{}", numbers.mismatches),
                     fmt::format("{:.3g}", numbers.largest_difference), histogram_of(numbers),
                     reasons.empty() ? "-" : reasons});
  }
  return format_table(table);
}

nlohmann::ordered_json shadow_to_json(const ShadowSums& sums) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [key, numbers] : sums) {
    nlohmann::ordered_json item = {
        {"definition", key.definition}, {"solution", key.solution},
        {"pattern", key.pattern},       {"shape", key.shape},
        {"checks", numbers.checks},     {"mismatches", numbers.mismatches}};
    nlohmann::ordered_json misses = nlohmann::ordered_json::object();
    for (uint32_t i = 1; i < kShadowMisses; ++i) {
      misses[kShadowMissNames[i]] = numbers.not_checked[i];
    }
    item["not_checked"] = std::move(misses);
    item["elements"] = numbers.elements;
    item["wrong_elements"] = numbers.wrong_elements;
    item["nans"] = numbers.nans;
    item["infinities"] = numbers.infinities;
    item["largest_difference"] = numbers.largest_difference;
    item["largest_mean_difference"] = numbers.largest_mean;
    nlohmann::ordered_json histogram = nlohmann::ordered_json::array();
    for (uint32_t i = 0; i < kShadowBuckets; ++i) {
      nlohmann::ordered_json bucket;
      if (i + 1 < kShadowBuckets) {
        bucket["most"] = kShadowBounds[i];
      } else {
        bucket["most"] = nullptr;
      }
      bucket["checks"] = numbers.buckets[i];
      histogram.push_back(std::move(bucket));
    }
    item["worst_of_tolerance"] = std::move(histogram);
    list.push_back(std::move(item));
  }
  return list;
}

std::string shadow_words(const ShadowSums& sums) {
  if (sums.empty()) return "";
  ShadowNumbers all;
  uint64_t missed = 0;
  const auto worst =
      std::ranges::max_element(sums, {}, [](const auto& sum) { return sum.second.mismatches; });
  for (const auto& [key, numbers] : sums) {
    add(numbers, &all);
    for (const uint64_t count : numbers.not_checked) missed = saturating_add(missed, count);
  }
  std::string most;
  if (all.mismatches != 0) {
    const ShadowKey& key = worst->first;
    most = fmt::format(", most of {}{}{}", printable(key.definition),
                       key.shape.empty() ? "" : " at ", printable(key.shape));
  }
  return fmt::format("{}, {}{}, {} not checked", counted(all.checks, "shadow check"),
                     counted(all.mismatches, "mismatch", "mismatches"), most, missed);
}

}  // namespace fibshim::tools
