#include "tools/record/pattern_fit.h"

#include <fmt/format.h>

#include "loader/compile/snapshot_builder.h"
#include "shim/abi/outcomes.h"

namespace fibshim::tools {
namespace {

std::string sizes_text(const std::vector<uint32_t>& sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

std::string image_text(const ImageHash& hash) {
  return fmt::format("xxh128:{:016x}{:016x}", hash.high, hash.low);
}

// Why the kernel is not the pattern's; empty when it is.
std::string misfit(const Snapshot& snapshot, const Pattern& pattern, const KernelRecord& kernel) {
  if (!kernel.has_params) return "the driver does not tell the kernel's parameters";
  if (pattern.has_params != 0) {
    const uint16_t* const wanted = snapshot.begin(pattern.param_sizes);
    const std::vector<uint32_t> theirs(wanted, wanted + pattern.param_sizes.count);
    std::vector<uint32_t> own;
    for (const ParamRecord& param : kernel.params) own.push_back(param.size);
    if (own != theirs) {
      return fmt::format("params differ: the kernel's are {}, the pattern's {}", sizes_text(own),
                         sizes_text(theirs));
    }
  }
  if (pattern.images.count == 0) return "";
  if (kernel.image.empty()) return "image differs: the kernel's is not known";
  const ImageHash* const images = snapshot.begin(pattern.images);
  for (uint32_t i = 0; i < pattern.images.count; ++i) {
    if (image_text(images[i]) == kernel.image) return "";
  }
  return fmt::format("image differs: the kernel's is {}", kernel.image);
}

// What kept launches from being redirected, of what was counted while the recording ran.
std::string reasons(const KernelRecord& kernel) {
  std::string out;
  for (const auto& [outcome, count] : kernel.outcomes) {
    if (outcome == static_cast<uint32_t>(Outcome::hit) ||
        outcome == static_cast<uint32_t>(Outcome::observed) ||
        outcome == static_cast<uint32_t>(Outcome::untracked) || outcome >= kOutcomeCount) {
      continue;
    }
    out += fmt::format("{}{} {}: {}", out.empty() ? "" : "; ", count, kOutcomes[outcome].name,
                       kOutcomes[outcome].meaning);
  }
  return out;
}

}  // namespace

std::vector<PatternFit> fit_patterns(const Snapshot& snapshot, const KernelRecord& kernel) {
  const SymbolMatcher& matcher = matcher_of(&snapshot);
  std::vector<SymbolMatch> matches(16);
  uint32_t count =
      matcher.match(kernel.symbol, matches.data(), static_cast<uint32_t>(matches.size()));
  if (count > matches.size()) {
    matches.resize(count);
    count = matcher.match(kernel.symbol, matches.data(), count);
  }
  matches.resize(count);
  std::vector<PatternFit> out;
  for (const SymbolMatch& match : matches) {
    const Pattern& pattern = snapshot.begin(snapshot.patterns)[match.pattern];
    const std::string why = misfit(snapshot, pattern, kernel);
    out.push_back({snapshot.text(pattern.label), why.empty(), why.empty() ? reasons(kernel) : why});
  }
  return out;
}

}  // namespace fibshim::tools
