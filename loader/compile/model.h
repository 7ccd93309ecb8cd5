// A config folder after reading and cross-checking. The checks fill it in, and the snapshot is
// built from it.
#pragma once

#include "loader/read/folder.h"
#include "loader/compile/pattern.h"
#include "loader/compile/solution.h"

namespace fibshim {

// The snapshot's structs, with the steps from which the builder makes the programs.
struct ArgumentSpec : ArgumentMap {
  std::vector<Step> steps;
};

struct GeometrySpec : GeometryMap {
  std::shared_ptr<const CompiledValue> value;  // null if it is constant
};

// A list that does not change any more: copies share it.
template <class T>
class SharedList {
 public:
  SharedList() = default;
  SharedList(std::vector<T> items)
      : items_(items.empty() ? nullptr : std::make_shared<const std::vector<T>>(std::move(items))) {
  }

  const std::vector<T>& items() const {
    static const std::vector<T> none;
    return items_ == nullptr ? none : *items_;
  }
  bool operator==(const SharedList&) const = default;  // true of copies

 private:
  std::shared_ptr<const std::vector<T>> items_;
};

struct TensorSpec : TensorUse {
  std::string_view name_text;  // of the pattern
  std::vector<Step> shift_steps;
  size_t axis_count;  // of those in TensorSpecs
};

// What shadow checks need to know of the launches of one pattern and definition.
struct TensorSpecs {
  using Steps = std::pair<size_t, size_t>;  // the first of `steps`, and how many
  std::vector<Step> steps;
  std::vector<TensorSpec> tensors;
  std::vector<std::pair<Steps, Steps>> axes;  // of one tensor after the other: count, stride
  std::vector<std::pair<std::string_view, Steps>> variable_axes;  // with the definition's names
};

struct BindingSpec {
  uint32_t pattern = 0;   // index into FolderModel::patterns
  uint32_t solution = 0;  // index into FolderModel::solutions
  BindingState state = BindingState::ready;
  std::string reason;
  bool is_identity = false;
  bool has_cluster = false;
  SharedList<ArgumentSpec> arguments;
  GeometrySpec geometry[kGeometryCount] = {};
  std::vector<Step> workspace;  // its size in bytes; empty: none
  SharedList<Step> where;
  SharedList<Clause> where_clauses;  // what the steps check
  std::vector<Step> when;            // also set if the binding is refused or broken
  std::vector<Clause> when_clauses;
  std::shared_ptr<const TensorSpecs> tensors;  // null: nothing is known

  // Frees the lists: in an engine nobody reads them after the snapshot is made.
  void release_lists() {
    arguments = {};
    where = {};
    where_clauses = {};
    when = std::vector<Step>();
    when_clauses = std::vector<Clause>();
    tensors = nullptr;
  }
};

struct FolderModel {
  std::deque<FolderListing> folders;   // an earlier folder wins over later ones
  std::deque<std::string> files;       // the names that Marks point to
  std::deque<Definition> definitions;  // a deque, since `by_name` points to the elements
  std::unordered_map<std::string_view, const Definition*> by_name;
  std::vector<SolutionSpec> solutions;
  std::vector<std::unique_ptr<PatternSpec>> patterns;  // in the order of trial
  std::vector<std::string> pattern_files;              // one per pattern, below the root
  std::vector<BindingSpec> bindings;
  FolderSettings settings;
  uint64_t digest[2] = {0, 0};

  // Returns the definition that the solution solves, or null if there is none of that name.
  const Definition* definition_of(const SolutionSpec& solution) const {
    const auto at = by_name.find(solution.definition.name);
    return at == by_name.end() ? nullptr : at->second;
  }

  // Returns the file of pattern `index`, as shown to people.
  std::string shown_pattern(size_t index) const {
    return folders[patterns[index]->folder].shown(pattern_files[index]);
  }
};

}  // namespace fibshim
