// What the plans of a pattern's launches depend on (LaunchInput in shim/abi/snapshot.h).
#pragma once

#include <vector>

#include "loader/compile/model.h"

namespace fibshim {

// Collects the inputs of programs.
class LaunchInputList {
 public:
  void add(const std::vector<Step>& steps);
  void add_geometry(uint32_t index);
  // All programs of a binding, but those that it shares with `other`, which has been added if it is
  // of the same pattern; null: there is none.
  void add(const BindingSpec& binding, const BindingSpec* other = nullptr);

  // False: a program computes with an address, or there are too many inputs.
  bool is_whole() const { return is_whole_ && inputs_.size() <= kMaxLaunchInputs; }
  const std::vector<LaunchInput>& inputs() const { return inputs_; }

 private:
  void add(LaunchInput input);
  void add_value(uint32_t param, uint32_t offset, ValueType type);
  void add_comparison(const Step& step);
  void add_equality(const Step& step);

  std::vector<LaunchInput> inputs_;
  bool is_whole_ = true;
};

LaunchInputList find_launch_inputs(const PatternSpec& pattern);

}  // namespace fibshim
