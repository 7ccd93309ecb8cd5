#include "loader/compile/snapshot_builder.h"

#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <span>

#include "loader/compile/fast_form.h"
#include "loader/compile/launch_inputs.h"
#include "shim/abi/folder_list.h"

namespace fibshim {
namespace {

std::vector<SymbolEntry> symbol_entries(const FolderModel& model) {
  std::vector<SymbolEntry> entries;
  for (const auto& pattern : model.patterns) {
    SymbolEntry entry{pattern->symbol, {}, pattern->numeric_captures};
    for (const std::string& capture : pattern->captures) {
      entry.groups.push_back(pattern->symbol->group_number(capture));
    }
    entries.push_back(std::move(entry));
  }
  for (const auto& pattern : model.patterns) {
    for (const MemberSpec& member : pattern->members) entries.push_back({member.symbol, {}, 0});
  }
  return entries;
}

// Lies in front of every snapshot of this process, so that the API only needs to pass a Snapshot*.
struct alignas(64) SnapshotHeader {
  explicit SnapshotHeader(const FolderModel& model)
      : matcher(symbol_entries(model)), trust(model.folders[0].trust.trust) {}
  SymbolMatcher matcher;
  Trust trust;
};

SnapshotHeader* header_of(const Snapshot* snapshot) {
  return reinterpret_cast<SnapshotHeader*>(const_cast<Snapshot*>(snapshot)) - 1;
}

// Grows one block, with room for the header in front. Equal texts and programs are stored once.
class BlobBuilder {
 public:
  static constexpr size_t kAlignment = 8;
  using Memory = std::unique_ptr<char, decltype(&free)>;

  BlobBuilder() { (void)room(sizeof(Snapshot)); }

  // `bytes`: a generous guess of what follows, which spares most folders a reallocation. What is
  // not used is never touched.
  void expect(size_t bytes) {
    if (bytes > capacity_ - size_) grow(bytes);
  }

  template <class T>
  Array<T> array(const std::vector<T>& values) {
    static_assert(alignof(T) <= kAlignment);
    return {append(values.data(), values.size() * sizeof(T)), static_cast<uint32_t>(values.size())};
  }

  // Stores a text with a NUL after it. The empty text is stored like any other: offset 0 means
  // "none".
  Offset text(std::string_view value) {
    const auto known = texts_.find(value);
    if (known != texts_.end()) return known->second;
    // Texts need no alignment; append() aligns whatever follows.
    const auto at = static_cast<Offset>(size_);
    char* const text = room(value.size() + 1);
    memcpy(text, value.data(), value.size());
    text[value.size()] = '\0';
    texts_.emplace(value, at);
    return at;
  }

  Program program(std::span<const Step> steps) {
    if (steps.empty()) return {0, 0};
    const std::string_view key(reinterpret_cast<const char*>(steps.data()), steps.size_bytes());
    const auto known = programs_.find(key);
    const auto count = static_cast<uint32_t>(steps.size());
    if (known != programs_.end()) return {known->second, count};
    const Program program = {append(steps.data(), steps.size_bytes()), count};
    programs_.emplace(key, program.at);
    return program;
  }

  Program clauses(const std::vector<Step>& steps) {
    if (are_sorted_clauses(steps)) return program(steps);
    return program(sort_clauses(steps));
  }

  // Makes room for `count` items, which put() fills in.
  template <class T>
  Array<T> array_of(size_t count) {
    align();
    const auto at = static_cast<Offset>(size_);
    memset(room(count * sizeof(T)), 0, count * sizeof(T));
    return {at, static_cast<uint32_t>(count)};
  }

  template <class T>
  void put(Array<T> array, size_t index, const T& value) {
    memcpy(begin() + array.at + index * sizeof(T), &value, sizeof(T));
  }

  // Offsets have 32 bits: if this is true, returned offsets are invalid.
  bool is_too_large() const { return size_ > UINT32_MAX; }

  size_t size() const { return size_; }
  char* begin() const { return memory_.get() + sizeof(SnapshotHeader); }
  Memory release() { return std::move(memory_); }

 private:
  Offset append(const void* data, size_t size) {
    if (size == 0) return 0;
    align();
    const auto at = static_cast<Offset>(size_);
    memcpy(room(size), data, size);
    return at;
  }

  void align() {
    const size_t padding = (kAlignment - size_ % kAlignment) % kAlignment;
    memset(room(padding), 0, padding);
  }

  // Returns `size` more bytes at the end.
  char* room(size_t size) {
    if (size > capacity_ - size_) grow(size + capacity_);
    char* const at = begin() + size_;
    size_ += size;
    return at;
  }

  void grow(size_t by) {
    constexpr size_t kUnit = alignof(SnapshotHeader);
    const size_t capacity = (size_ + by + kUnit - 1) / kUnit * kUnit;
    Memory memory(static_cast<char*>(aligned_alloc(kUnit, sizeof(SnapshotHeader) + capacity)),
                  &free);
    if (memory == nullptr) throw std::bad_alloc();
    memory.swap(memory_);
    if (memory != nullptr) memcpy(begin(), memory.get() + sizeof(SnapshotHeader), size_);
    capacity_ = capacity;
  }

  // Allows to look up a text without copying it.
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return XXH3_64bits(text.data(), text.size()); }
  };
  using Places = std::unordered_map<std::string, Offset, TextHash, std::equal_to<>>;

  Memory memory_{nullptr, &free};
  size_t size_ = 0;  // without the header, as capacity_
  size_t capacity_ = 0;
  Places texts_;
  Places programs_;
};

// Returns a zeroed struct, so that padding does not make the snapshots of equal folders differ.
template <class T>
T zeroed() {
  T value;
  memset(static_cast<void*>(&value), 0, sizeof value);
  return value;
}

Solution make_solution(const SolutionSpec& spec, BlobBuilder* blob) {
  auto solution = zeroed<Solution>();
  solution.name = blob->text(spec.name.name + share_text(spec.share));
  solution.definition = blob->text(spec.definition.name);
  solution.file = blob->text(spec.relative);
  solution.kernel = blob->text(spec.kernel.name);
  std::vector<Image> images;
  for (const SolutionImage& image : spec.images) {
    auto entry = zeroed<Image>();
    entry.path = blob->text(image.relative);
    entry.kind = image.kind;
    entry.is_arch_specific = image.scope == ArchScope::arch_specific;
    entry.sm = image.sm;
    memcpy(entry.sha256, image.hash.data(), sizeof entry.sha256);
    images.push_back(entry);
  }
  solution.images = blob->array(images);
  std::vector<uint16_t> sizes;
  for (const KernelParam& param : spec.params) {
    sizes.push_back(static_cast<uint16_t>(std::min<uint32_t>(param.size, UINT16_MAX)));
  }
  solution.param_sizes = blob->array(sizes);
  solution.early_params = spec.early_params;
  solution.next_may_begin = spec.next_may_begin;
  solution.workspace = spec.workspace_argument;
  solution.waits_for_previous = spec.waits_for_previous;
  solution.on_error = spec.on_error;
  solution.on_mismatch = spec.on_mismatch;
  solution.shadow_interval = spec.shadow_interval;
  solution.atol = spec.atol;
  solution.rtol = spec.rtol;
  solution.matched_ratio = spec.matched_ratio;
  solution.folder = spec.folder;
  solution.error_code = static_cast<int32_t>(spec.error_code);
  if (!spec.error_message.empty()) solution.error_message = blob->text(spec.error_message);
  return solution;
}

Pattern make_pattern(const PatternSpec& spec, const std::string& file, BlobBuilder* blob) {
  auto pattern = zeroed<Pattern>();
  pattern.label = blob->text(spec.label);
  pattern.file = blob->text(file);
  pattern.benefit = spec.benefit;
  pattern.has_params = spec.has_params;
  pattern.param_sizes = blob->array(spec.params);
  pattern.images = blob->array(spec.images);
  pattern.capture_count = static_cast<uint32_t>(spec.captures.size());
  std::vector<KeyPart> keys;
  for (const CompiledValue& key : spec.keys) keys.push_back({blob->program(key.steps)});
  pattern.key = blob->array(keys);
  std::vector<NamePart> name;
  for (const TemplatePart& part : spec.name) {
    auto entry = zeroed<NamePart>();
    entry.index = part.index;
    switch (part.kind) {
      case TemplatePart::Kind::text:
        entry.kind = NamePart::Kind::text;
        entry.text = blob->text(part.text);
        break;
      case TemplatePart::Kind::key: entry.kind = NamePart::Kind::key; break;
      case TemplatePart::Kind::capture: entry.kind = NamePart::Kind::capture; break;
    }
    name.push_back(entry);
  }
  pattern.name = blob->array(name);
  pattern.where = blob->clauses(spec.where_steps);
  pattern.fast_key = make_fast_key(spec);
  pattern.has_whole_checks = add_fast_checks(spec.where_clauses, &pattern.fast_checks);
  return pattern;
}

Pattern make_member(const PatternSpec& spec, size_t index, const std::string& file,
                    uint16_t rewrite, BlobBuilder* blob) {
  const MemberSpec& member = spec.members[index];
  auto pattern = zeroed<Pattern>();
  pattern.label = blob->text(spec.label + "[" + std::to_string(index) + "]");
  pattern.file = blob->text(file);
  pattern.benefit = spec.benefit;
  pattern.has_params = 1;
  pattern.param_sizes = blob->array(member.params);
  pattern.images = blob->array(member.images);
  pattern.kind = PatternKind::member;
  pattern.rewrite = rewrite;
  return pattern;
}

Rewrite make_rewrite(const PatternSpec& spec, uint32_t pattern, uint32_t first_member,
                     BlobBuilder* blob) {
  auto rewrite = zeroed<Rewrite>();
  rewrite.pattern = pattern;
  rewrite.first_member = first_member;
  rewrite.member_count = static_cast<uint8_t>(spec.members.size());
  rewrite.is_analysis = spec.is_analysis;
  for (size_t i = 0; i < spec.members.size(); ++i) {
    rewrite.first_param[i] = spec.members[i].first_param;
  }
  std::vector<RewriteBuffer> buffers;
  for (const BufferSpec& buffer : spec.buffers) {
    buffers.push_back(buffer);
    buffers.back().shift = blob->program(buffer.shift_steps);
    buffers.back().bytes = blob->program(buffer.steps);
  }
  rewrite.buffers = blob->array(buffers);
  return rewrite;
}

Array<ArgumentMap> add_arguments(const std::vector<ArgumentSpec>& specs, BlobBuilder* blob) {
  std::vector<ArgumentMap> arguments;
  arguments.reserve(specs.size());
  for (const ArgumentSpec& argument : specs) {
    arguments.push_back(argument);
    arguments.back().program = blob->program(argument.steps);
  }
  return blob->array(arguments);
}

void add_tensors(const TensorSpecs& specs, BlobBuilder* blob, Binding* binding) {
  const auto program = [&](const TensorSpecs::Steps& steps) {
    return blob->program(std::span(specs.steps).subspan(steps.first, steps.second));
  };
  std::vector<TensorUse> tensors;
  tensors.reserve(specs.tensors.size());
  std::vector<TensorAxis> tensor_axes;
  auto axis = specs.axes.begin();
  for (const TensorSpec& tensor : specs.tensors) {
    auto& entry = tensors.emplace_back(zeroed<TensorUse>());
    entry = tensor;
    entry.name = blob->text(tensor.name_text);
    entry.shift = blob->program(tensor.shift_steps);
    tensor_axes.clear();
    for (size_t i = 0; i < tensor.axis_count; ++i, ++axis) {
      tensor_axes.push_back({program(axis->first), program(axis->second)});
    }
    entry.axes = blob->array(tensor_axes);
  }
  binding->tensors = blob->array(tensors);
  std::vector<NamedAxis> axes;
  axes.reserve(specs.variable_axes.size());
  for (const auto& [name, steps] : specs.variable_axes) {
    axes.push_back({blob->text(name), program(steps)});
  }
  binding->axes = blob->array(axes);
}

// A binding, and what was made of it. The next one may share parts of it.
struct MadeBinding {
  const BindingSpec* spec = nullptr;
  Binding binding;
};

Binding make_binding(const BindingSpec& spec, const FolderModel& model, const MadeBinding& last,
                     BlobBuilder* blob) {
  auto binding = zeroed<Binding>();
  binding.pattern = spec.pattern;
  binding.solution = spec.solution;
  binding.state = spec.state;
  binding.is_identity = spec.is_identity;
  binding.has_cluster = spec.has_cluster;
  if (!spec.reason.empty()) binding.reason = blob->text(spec.reason);
  if (last.spec != nullptr && spec.arguments == last.spec->arguments) {
    binding.arguments = last.binding.arguments;
  } else {
    binding.arguments = add_arguments(spec.arguments.items(), blob);
  }
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    const GeometrySpec& value = spec.geometry[i];
    binding.geometry[i] = value;
    if (value.kind != GeometryMap::Kind::program) continue;
    binding.geometry[i].program = blob->program(value.value->steps);
  }
  binding.workspace = blob->program(spec.workspace);
  binding.where = last.spec != nullptr && spec.where == last.spec->where
                      ? last.binding.where
                      : blob->clauses(spec.where.items());
  binding.when = blob->clauses(spec.when);
  binding.range = make_fast_range(spec);
  binding.fast =
      make_fast_form(spec, *model.patterns[spec.pattern], model.solutions[spec.solution]);
  if (last.spec != nullptr && spec.tensors == last.spec->tensors) {
    binding.tensors = last.binding.tensors;
    binding.axes = last.binding.axes;
  } else if (spec.tensors != nullptr) {
    add_tensors(*spec.tensors, blob, &binding);
  }
  return binding;
}

// Sets the largest dynamic shared memory of each solution; UINT32_MAX if a binding computes it.
void set_max_shared_mem(const FolderModel& model, std::vector<Solution>* solutions) {
  std::vector<bool> is_seen(solutions->size());
  for (const BindingSpec& binding : model.bindings) {
    if (binding.state != BindingState::ready) continue;
    const GeometrySpec& geometry = binding.geometry[kSharedMem];
    uint32_t bytes = geometry.kind == GeometryMap::Kind::constant ? geometry.constant : UINT32_MAX;
    uint32_t& most = (*solutions)[binding.solution].max_shared_mem;
    most = is_seen[binding.solution] ? std::max(most, bytes) : bytes;
    is_seen[binding.solution] = true;
  }
}

// Sets the bits of arguments that are inputs and that neither a definition nor a pattern writes.
void set_kept_params(const FolderModel& model, std::vector<Solution>* solutions) {
  for (size_t i = 0; i < solutions->size(); ++i) {
    const SolutionSpec& spec = model.solutions[i];
    const Definition* const definition = model.definition_of(spec);
    if (definition == nullptr) continue;
    const auto is_kept = [&](const std::string& name) {
      const DefinitionArgument* const argument = definition->find_argument(name);
      return argument != nullptr && !argument->is_output &&
             std::ranges::none_of(definition->arguments, [&](const DefinitionArgument& output) {
               return output.is_output && (output.name == name || output.written_into == name);
             });
    };
    for (size_t k = 0; k < spec.arguments.size() && k < 32; ++k) {
      if (is_kept(spec.arguments[k].name)) (*solutions)[i].kept_params |= uint32_t{1} << k;
    }
  }
  for (const BindingSpec& binding : model.bindings) {
    const std::vector<MarkedName>& arguments = model.solutions[binding.solution].arguments;
    for (const MarkedName& written : model.patterns[binding.pattern]->writes) {
      for (size_t k = 0; k < arguments.size() && k < 32; ++k) {
        if (arguments[k].name != written.name) continue;
        (*solutions)[binding.solution].kept_params &= ~(uint32_t{1} << k);
      }
    }
  }
}

}  // namespace

Result<SnapshotPtr> build_snapshot(const FolderModel& model, const BindModel& bind) {
  BlobBuilder blob;
  blob.expect(4096 + 1024 * model.solutions.size());
  auto head = zeroed<Snapshot>();
  memcpy(head.magic, "FIBSNAP", 8);
  head.version = kSnapshotVersion;
  head.digest[0] = model.digest[0];
  head.digest[1] = model.digest[1];
  std::vector<Offset> roots;
  std::string all_roots;
  for (const FolderListing& folder : model.folders) {
    head.root_device = mix_identity(head.root_device, folder.root.device());
    head.root_inode = mix_identity(head.root_inode, folder.root.inode());
    roots.push_back(blob.text(folder.root.path()));
    if (!all_roots.empty()) all_roots += kFolderSeparator;
    all_roots += folder.root.path() + share_text(folder.share);
  }

  std::vector<Solution> solutions;
  solutions.reserve(model.solutions.size());
  for (const SolutionSpec& spec : model.solutions) {
    solutions.push_back(make_solution(spec, &blob));
  }
  head.solutions = blob.array(solutions);

  std::vector<LaunchInputList> inputs;  // of each pattern
  for (const auto& pattern : model.patterns) inputs.push_back(find_launch_inputs(*pattern));
  MadeBinding last;
  uint32_t made = 0;
  const auto add_bindings = [&](size_t end) {
    if (made == 0) {
      blob.expect(sizeof(Snapshot) + 4 * sizeof(Binding) * model.bindings.size());
      head.bindings = blob.array_of<Binding>(model.bindings.size());
    }
    for (; made < end && !blob.is_too_large(); ++made) {
      const BindingSpec& spec = model.bindings[made];
      inputs[spec.pattern].add(spec, last.spec);
      last = {&spec, make_binding(spec, model, last, &blob)};
      blob.put(head.bindings, made, last.binding);
    }
  };
  if (bind != nullptr && !bind(add_bindings)) return SnapshotPtr();
  add_bindings(model.bindings.size());
  set_max_shared_mem(model, &solutions);
  set_kept_params(model, &solutions);
  for (size_t i = 0; i < solutions.size(); ++i) blob.put(head.solutions, i, solutions[i]);

  std::vector<Pattern> patterns;
  std::vector<Pattern> members;
  std::vector<Rewrite> rewrites;
  uint32_t binding = 0;  // sorted by pattern, definition and order of trial
  for (size_t i = 0; i < model.patterns.size(); ++i) {
    Pattern pattern = make_pattern(*model.patterns[i], model.pattern_files[i], &blob);
    std::vector<Route> routes;
    for (; binding < made && model.bindings[binding].pattern == i; ++binding) {
      const Offset definition = solutions[model.bindings[binding].solution].definition;
      if (routes.empty() || routes.back().definition != definition) {
        routes.push_back({definition, binding, 0});
      }
      ++routes.back().count;
    }
    pattern.routes = blob.array(routes);
    const PatternSpec& spec = *model.patterns[i];
    pattern.has_all_inputs = inputs[i].is_whole();
    if (inputs[i].is_whole()) pattern.inputs = blob.array(inputs[i].inputs());
    if (spec.is_rewrite()) {
      const auto first = static_cast<uint32_t>(model.patterns.size() + members.size());
      pattern.kind = PatternKind::rewrite;
      pattern.rewrite = static_cast<uint16_t>(rewrites.size());
      rewrites.push_back(make_rewrite(spec, static_cast<uint32_t>(i), first, &blob));
      for (size_t k = 0; k < spec.members.size(); ++k) {
        members.push_back(make_member(spec, k, model.pattern_files[i], pattern.rewrite, &blob));
      }
    }
    patterns.push_back(pattern);
  }
  patterns.insert(patterns.end(), members.begin(), members.end());
  head.patterns = blob.array(patterns);
  head.rewrites = blob.array(rewrites);

  std::vector<Setting> settings;
  for (const auto& [name, value] : model.settings.of_process) {
    settings.push_back({blob.text(name), blob.text(value.text)});
  }
  head.settings = blob.array(settings);

  head.root = blob.text(all_roots);
  head.roots = blob.array(roots);
  if (blob.is_too_large()) {
    return fail(ErrorCode::invalid_value,
                "the folder's patterns and solutions make a snapshot of more than 4 GiB");
  }
  head.size_bytes = static_cast<uint32_t>(blob.size());
  auto* const snapshot = reinterpret_cast<Snapshot*>(blob.begin());
  memcpy(static_cast<void*>(snapshot), &head, sizeof head);
  BlobBuilder::Memory memory = blob.release();
  new (memory.get()) SnapshotHeader(model);
  (void)memory.release();
  return SnapshotPtr(snapshot);
}

const SymbolMatcher& matcher_of(const Snapshot* snapshot) { return header_of(snapshot)->matcher; }

Trust trust_of(const Snapshot* snapshot) { return header_of(snapshot)->trust; }

void SnapshotCloser::operator()(const Snapshot* snapshot) const {
  if (snapshot == nullptr) return;
  SnapshotHeader* const header = header_of(snapshot);
  header->~SnapshotHeader();
  free(header);
}

}  // namespace fibshim
