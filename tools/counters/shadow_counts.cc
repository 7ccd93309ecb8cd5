#include "tools/counters/shadow_counts.h"

#include <math.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tools/base/terminal.h"
#include "tools/counters/counters_files.h"

namespace fibshim::tools {
namespace {

double sound(double difference) {
  return std::isfinite(difference) && difference > 0 ? difference : 0;
}

// "size 3, busy 1"; empty: none.
std::string reasons_of(const ShadowNumbers& numbers) {
  std::string out;
  for (uint32_t i = 1; i < kShadowMisses; ++i) {
    if (numbers.not_checked[i] == 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", kShadowMissNames[i],
                       numbers.not_checked[i]);
  }
  return out;
}

}  // namespace

void ShadowNumbers::add(const ShadowNumbers& more) {
  checks = saturating_add(checks, more.checks);
  mismatches = saturating_add(mismatches, more.mismatches);
  for (uint32_t i = 0; i < kShadowMisses; ++i) {
    not_checked[i] = saturating_add(not_checked[i], more.not_checked[i]);
  }
  elements = saturating_add(elements, more.elements);
  wrong_elements = saturating_add(wrong_elements, more.wrong_elements);
  nans = saturating_add(nans, more.nans);
  infinities = saturating_add(infinities, more.infinities);
  largest_difference = std::max(largest_difference, more.largest_difference);
  largest_mean = std::max(largest_mean, more.largest_mean);
  for (uint32_t i = 0; i < kShadowBuckets; ++i) {
    buckets[i] = saturating_add(buckets[i], more.buckets[i]);
  }
}

uint64_t ShadowNumbers::all_not_checked() const {
  uint64_t sum = 0;
  for (const uint64_t number : not_checked) sum = saturating_add(sum, number);
  return sum;
}

ShadowNumbers numbers_of(const ShadowEntry& entry) {
  ShadowNumbers out;
  out.checks = entry.checks;
  out.mismatches = entry.mismatches;
  std::ranges::copy(entry.not_checked, out.not_checked);
  out.elements = entry.elements;
  out.wrong_elements = entry.wrong_elements;
  out.nans = entry.nans;
  out.infinities = entry.infinities;
  out.largest_difference = sound(entry.largest_difference);
  out.largest_mean = sound(entry.largest_mean);
  std::ranges::copy(entry.buckets, out.buckets);
  return out;
}

ShadowSums shadow_sums_of(const std::vector<ProcessCounters>& processes) {
  ShadowSums out;
  for (const ProcessCounters& process : processes) {
    for (const ShadowCount& count : process.shadow) {
      out[{count.definition, count.solution, count.pattern, count.shape}].add(count.numbers);
    }
  }
  return out;
}

std::string shadow_table(const ShadowSums& sums) {
  if (sums.empty()) return "";
  std::vector<std::vector<std::string>> table = {{"CHECKED", "SOLUTION", "SHAPE", ">CHECKS",
                                                  ">MISMATCHES", ">LARGEST DIFFERENCE",
                                                  "NOT CHECKED"}};
  for (const auto& [key, numbers] : sums) {
    const std::string reasons = reasons_of(numbers);
    table.push_back({printable(key.definition), printable(key.solution),
                     key.shape.empty() ? "-" : printable(key.shape),
                     fmt::format("{}", numbers.checks), fmt::format("{}", numbers.mismatches),
                     fmt::format("{:.3g}", numbers.largest_difference),
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
  for (const auto& [key, numbers] : sums) all.add(numbers);
  return fmt::format("{}, {}, {} not checked", counted(all.checks, "shadow check"),
                     counted(all.mismatches, "mismatch", "mismatches"), all.all_not_checked());
}

}  // namespace fibshim::tools
