// A launch of the kernel that a pattern describes, as the shim would meet it, and what becomes of it.
#pragma once

#include "shim/plan/plan.h"
#include "tools/judge/gpu.h"
#include "tools/judge/recorded_launch.h"
#include "tools/judge/variants.h"

namespace fibshim::judge {

class DescribedLaunch {
 public:
  // With the pattern's "params", or as large as what is read. `recorded`: a launch whose geometry and values hold
  // where nothing else is stored; or null.
  DescribedLaunch(const PatternSpec& pattern, const RecordedLaunch* recorded);
  DescribedLaunch(const DescribedLaunch&) = delete;
  DescribedLaunch& operator=(const DescribedLaunch&) = delete;

  // Puts a value where the pattern reads it. Empty, or why no launch has it.
  std::string store(const PatternValue& value, double number);
  void store_address(const PatternValue& value, uint64_t address);

  // Adds a capture's text to the symbol, in the order of their indexes.
  void add_capture(uint16_t index, const std::string& text);

  // The symbol as a whole, and the captures in it.
  void set_symbol(const std::string& symbol, const SymbolMatch& match) {
    symbol_ = symbol;
    match_ = match;
  }

  // The launch itself, with values of at most 8 bytes.
  Launch original() const;

  // What the shim launches instead; nothing when it runs the original, or another of the definition's solutions,
  // and then *reason says why. Fails when that is another binding than the variant's, or when the fast form does
  // other than the plan.
  Result<std::optional<Launch>> plan(const Snapshot& snapshot, const Variant& variant,
                                     std::string* reason);

  // What the pattern reads, once planned.
  const LaunchView& view() const { return request_.view; }

 private:
  char* at(const Source& source) {
    return static_cast<char*>(params_[source.index]) + source.offset;
  }
  std::string why_original(const LaunchPlan& plan, const Resolution& resolution) const;
  std::string find_fast_difference(const LaunchPlan& plan, bool is_choice) const;

  Record record_{};
  Candidate candidate_{};
  LaunchRequest request_{};
  std::vector<Param> sizes_;
  std::vector<uint64_t> block_;
  std::vector<void*> params_;
  std::string symbol_;
  SymbolMatch match_{};
};

}  // namespace fibshim::judge
