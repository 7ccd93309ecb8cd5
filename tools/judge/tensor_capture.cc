#include "tools/judge/tensor_capture.h"

#include <fnmatch.h>
#include <string.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "loader/compile/bind.h"
#include "tools/base/files.h"
#include "tools/base/terminal.h"
#include "tools/base/try.h"
#include "tools/judge/references.h"
#include "tools/judge/usual_values.h"
#include "tools/judge/workloads.h"

#define XXH_INLINE_ALL
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrivate[] = "tensors of a running program, which may be private";
constexpr uint64_t kMostFileBytes = uint64_t{64} << 30;

// An entry of the plan, with the names that the plan's bytes do not contain.
struct PlannedEntry {
  const PatternSpec* pattern;
  const Definition* definition;
  std::vector<std::string> value_names;
  std::vector<CompiledValue> values;
  std::vector<bool> is_axis;
  std::vector<const DefinitionArgument*> tensors;
  std::vector<CompiledValue> addresses;

  std::optional<uint32_t> find_value(std::string_view name) const {
    const auto at = std::ranges::find(value_names, name);
    if (at == value_names.end()) return std::nullopt;
    return static_cast<uint32_t>(at - value_names.begin());
  }
};

std::optional<CompiledValue> compile(const PatternValue& value, const BindingScope& scope) {
  if (!value.expression) return compile_source(value.source);
  auto compiled = compile_value(value.expression->expression, scope);
  if (!compiled) return std::nullopt;
  return std::move(*compiled);
}

// The pattern's value that is the pointer of a tensor; null if there is none.
const PatternValue* pointer_of(const PatternSpec& pattern, const DefinitionArgument& argument) {
  const PatternValue* value = pattern.find_value(argument.name);
  if (value == nullptr && argument.is_output) value = pattern.find_value(argument.written_into);
  return value != nullptr && value->is_pointer ? value : nullptr;
}

// Makes the entry of one pattern. Returns why none of its launches is kept, or "".
std::string plan_entry(const PatternSpec& pattern, const Definition& definition,
                       PlannedEntry* out) {
  *out = {&pattern, &definition, {}, {}, {}, {}, {}};
  const BindingScope scope(pattern, definition);
  const auto add = [&](const std::string& name, CompiledValue value, bool is_axis) {
    out->value_names.push_back(name);
    out->values.push_back(std::move(value));
    out->is_axis.push_back(is_axis);
  };
  for (const DefinitionAxis& axis : definition.axes) {
    const PatternValue* const value = pattern.find_value(axis.name);
    std::optional<CompiledValue> compiled;
    if (axis.is_const) {
      compiled = compile_source(Source::constant(axis.value));
    } else if (value != nullptr && !value->is_pointer) {
      compiled = compile(*value, scope);
    }
    if (!compiled) return "its launch does not tell the axis \"" + axis.name + "\"";
    add(axis.name, std::move(*compiled), true);
  }
  for (const PatternValue& value : pattern.values) {
    if (value.is_axis || value.is_pointer || out->find_value(value.name)) continue;
    if (auto compiled = compile(value, scope)) add(value.name, std::move(*compiled), false);
  }
  for (const DefinitionArgument& argument : definition.arguments) {
    const PatternValue* const pointer = pointer_of(pattern, argument);
    if (argument.is_scalar || pointer == nullptr || element_type_of(argument.dtype) == nullptr ||
        argument.shape.size() > kTensorDims) {
      continue;
    }
    auto address = compile_name(pointer->name, pattern);
    if (!address) continue;
    out->tensors.push_back(&argument);
    out->addresses.push_back(std::move(*address));
  }
  if (out->values.size() > kMostTensorValues || out->tensors.size() > kMostTensors) {
    return "it has too many values or tensors";
  }
  const bool has_input = std::ranges::any_of(
      out->tensors, [](const DefinitionArgument* argument) { return !argument->is_output; });
  return has_input ? "" : "its launch has none of its inputs";
}

// The entries in the plan's order. *notes may be null.
std::vector<PlannedEntry> plan_entries(const FolderModel& model,
                                       const std::vector<std::string>& globs,
                                       std::vector<std::string>* notes) {
  std::vector<PlannedEntry> out;
  std::map<std::string, std::string> reasons;
  std::set<std::string> planned;
  for (const auto& pattern : model.patterns) {
    if (pattern->is_rewrite()) continue;
    for (const Definition& definition : model.definitions) {
      const std::string& name = definition.name.name;
      const bool is_wanted = globs.empty() || std::ranges::any_of(globs, [&](const auto& glob) {
                               return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
                             });
      if (!is_wanted || !pattern->can_name(name, {})) continue;
      PlannedEntry entry;
      const std::string why = plan_entry(*pattern, definition, &entry);
      if (why.empty()) {
        planned.insert(name);
        out.push_back(std::move(entry));
      } else {
        reasons.emplace(name, fmt::format("pattern \"{}\": {}", pattern->label, why));
      }
    }
  }
  for (const auto& [name, why] : reasons) {
    if (notes != nullptr && planned.count(name) == 0) {
      notes->push_back(fmt::format("{} is not kept: {}", name, why));
    }
  }
  return out;
}

void set_element(const ElementType& type, TensorPlanTensor* out) {
  static constexpr struct {
    const char* name;
    uint32_t exponent_bits, mantissa_bits, has_infinity;
  } kFloats[] = {{"float64", 11, 52, 1}, {"float32", 8, 23, 1},      {"float16", 5, 10, 1},
                 {"bfloat16", 8, 7, 1},  {"float8_e4m3fn", 4, 3, 0}, {"float8_e5m2", 5, 2, 1}};
  out->element_bytes = type.bytes;
  const std::string_view name = type.name;
  out->is_signed = name.starts_with("int");
  for (const auto& one : kFloats) {
    if (name != one.name) continue;
    out->exponent_bits = one.exponent_bits;
    out->mantissa_bits = one.mantissa_bits;
    out->has_infinity = one.has_infinity;
  }
}

template <size_t size>
void copy_cut(const std::string& text, char (&out)[size]) {
  memcpy(out, text.data(), std::min(text.size(), size - 1));
}

template <class T>
void append(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void append(const std::vector<T>& values, std::string* out) {
  out->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// A value of a launch, as the recorder computed it.
double number_of(const CompiledValue& value, int64_t bits) {
  return value.is_floating ? program_detail::bits_double(bits) : static_cast<double>(bits);
}

// The name of a stride that is not that of a contiguous tensor, or "".
std::string find_stride(const PlannedEntry& entry, const AxisValues& axes,
                        const std::vector<int64_t>& values) {
  static const SolutionSpec kNobody;
  static const VerifyBlock kNothing;
  const Definition& definition = *entry.definition;
  const Subject subject{&definition, &kNobody, &kNothing, find_op(definition, "")};
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& name = entry.value_names[i];
    if (entry.is_axis[i] || name.find("stride") == std::string::npos) continue;
    const auto usual = usual_value(name, subject, axes, 0);
    if (!usual || *usual != number_of(entry.values[i], values[i])) return name;
  }
  return "";
}

class Writer {
 public:
  Writer(const FolderModel& model, const std::string& output) : model_(model), output_(output) {}

  Result<CapturedWorkloads> run(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (fs::exists(output_, error) && !fs::is_empty(output_, error)) {
      return fail(ErrorCode::invalid_value, output_ + ": is there already");
    }
    plan_text_ = FIBSHIM_TRY(read_file(folder + "/" + kTensorPlanFile, kMaxImageBytes));
    if (plan_text_.size() < sizeof plan_) {
      return fail(ErrorCode::invalid_value, folder + ": its plan is damaged");
    }
    memcpy(&plan_, plan_text_.data(), sizeof plan_);
    if (plan_.version != kTensorsVersion || plan_.digest[0] != model_.digest[0] ||
        plan_.digest[1] != model_.digest[1]) {
      return fail(ErrorCode::invalid_value,
                  folder +
                      ": was recorded with another config folder than this one, or before it "
                      "was changed");
    }
    FIBSHIM_TRY(find_entries());
    for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
      if (file.path().extension() != kTensorsSuffix) continue;
      const auto read = read_process(file.path().string());
      if (!read) out_.faults.push_back(read.error().message);
    }
    return std::move(out_);
  }

 private:
  // Finds the plan's entries among those that the model gives, which have the names.
  Result<void> find_entries() {
    const auto all = plan_entries(model_, {}, nullptr);
    if (plan_text_.size() < sizeof plan_ + uint64_t{plan_.entry_count} * sizeof(TensorPlanEntry)) {
      return fail(ErrorCode::invalid_value, "the plan is damaged");
    }
    for (uint32_t i = 0; i < plan_.entry_count; ++i) {
      TensorPlanEntry planned;
      memcpy(&planned, plan_text_.data() + sizeof plan_ + i * sizeof planned, sizeof planned);
      TensorPlanEntry same{};
      const auto at = std::ranges::find_if(all, [&](const PlannedEntry& entry) {
        same = {};
        copy_cut(entry.pattern->label, same.pattern);
        copy_cut(entry.definition->name.name, same.definition);
        return memcmp(same.pattern, planned.pattern, sizeof same.pattern) == 0 &&
               memcmp(same.definition, planned.definition, sizeof same.definition) == 0;
      });
      if (at == all.end()) return fail(ErrorCode::invalid_value, "the plan is another folder's");
      entries_.push_back(*at);
    }
    return {};
  }

  Result<void> read_process(const std::string& path) {
    const auto bad = [&](const char* why) {
      return fail(ErrorCode::invalid_value, path + ": " + why);
    };
    std::ifstream file(path, std::ios::binary);
    TensorsHeader header{};
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    if (!file || memcmp(header.magic, kTensorsMagic, sizeof header.magic) != 0 ||
        header.version != kTensorsVersion || header.used_bytes > kMostFileBytes ||
        header.header_bytes < sizeof header) {
      return bad("not a file of tensors");
    }
    ++out_.processes;
    static constexpr const char* kWords[kTensorLossCount] = {
        "in a graph or while one was captured",
        "larger than the pool of 256 MB",
        "while copies were under way that fill the pool",
        "of a shape or memory that is not known",
        "beyond --tensors-limit",
        "after --tensors-seconds",
        "failed",
        "of inputs that are kept"};
    for (uint32_t i = 0; i < kTensorLossCount; ++i) {
      const bool is_duplicate = i == static_cast<uint32_t>(TensorLoss::duplicate);
      if (is_duplicate) out_.duplicates += header.losses[i];
      if (!is_duplicate && header.losses[i] != 0) out_.losses[kWords[i]] += header.losses[i];
    }
    std::string block;
    for (uint64_t at = header.header_bytes; at < header.used_bytes;) {
      KeptLaunch launch{};
      file.seekg(static_cast<std::streamoff>(at));
      file.read(reinterpret_cast<char*>(&launch), sizeof launch);
      if (!file || launch.bytes < sizeof launch || launch.bytes > header.used_bytes - at) {
        return bad("damaged");
      }
      block.resize(launch.bytes - sizeof launch);
      file.read(block.data(), static_cast<std::streamsize>(block.size()));
      if (!file || launch.entry >= entries_.size()) return bad("damaged");
      FIBSHIM_TRY(add(entries_[launch.entry], launch, block, path));
      at += launch.bytes;
    }
    return {};
  }

  Result<void> add(const PlannedEntry& entry, const KeptLaunch& launch, const std::string& block,
                   const std::string& path) {
    const auto damaged = [&] { return fail(ErrorCode::invalid_value, path + ": damaged"); };
    const uint64_t heads = uint64_t{launch.value_count} * sizeof(int64_t) +
                           uint64_t{launch.tensor_count} * sizeof(KeptTensor);
    if (launch.value_count != entry.values.size() || launch.tensor_count > entry.tensors.size() ||
        block.size() < heads) {
      return damaged();
    }
    std::vector<int64_t> values(launch.value_count);
    std::vector<KeptTensor> kept(launch.tensor_count);
    memcpy(values.data(), block.data(), values.size() * sizeof(int64_t));
    memcpy(kept.data(), block.data() + values.size() * sizeof(int64_t),
           kept.size() * sizeof(KeptTensor));
    AxisValues axes;
    for (size_t i = 0; i < values.size(); ++i) {
      if (entry.is_axis[i]) axes[entry.value_names[i]] = values[i];
    }
    if (const std::string stride = find_stride(entry, axes, values); !stride.empty()) {
      ++out_.losses[fmt::format("whose tensors may not be contiguous (\"{}\")", stride)];
      return {};
    }
    uint64_t at = heads;
    std::vector<Tensor> tensors(kept.size());
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i].tensor >= entry.tensors.size() || kept[i].bytes > block.size() - at) {
        return damaged();
      }
      const DefinitionArgument& argument = *entry.tensors[kept[i].tensor];
      tensors[i] = {element_type_of(argument.dtype), shape_of(argument.shape, axes), {}};
      const auto wanted = static_cast<uint64_t>(tensors[i].count()) * tensors[i].type->bytes;
      if (plan_.keeps_statistics == 0 && wanted != kept[i].bytes) return damaged();
      tensors[i].bytes.assign(block.data() + at, block.data() + at + kept[i].bytes);
      at += (kept[i].bytes + 7) / 8 * 8;
      if (at > block.size()) return damaged();
    }
    return write(entry, launch, values, kept, tensors);
  }

  Result<void> write(const PlannedEntry& entry, const KeptLaunch& launch,
                     const std::vector<int64_t>& values, const std::vector<KeptTensor>& kept,
                     const std::vector<Tensor>& tensors) {
    const Definition& definition = *entry.definition;
    const std::string& name = definition.name.name;
    const bool has_values = plan_.keeps_statistics == 0;
    Json axes = Json::object(), scalars = Json::object();
    Json inputs = Json::object(), outputs = Json::object(), statistics = Json::object();
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string& value_name = entry.value_names[i];
      if (entry.is_axis[i]) {
        if (!definition.find_axis(value_name)->is_const) axes[value_name] = values[i];
      } else if (entry.values[i].is_floating) {
        scalars[value_name] = number_of(entry.values[i], values[i]);
      } else {
        scalars[value_name] = values[i];
      }
    }
    std::string key = name + tools::json_line(axes) + tools::json_line(scalars);
    std::map<std::string, const Tensor*> file;
    for (size_t i = 0; i < kept.size(); ++i) {
      const DefinitionArgument& argument = *entry.tensors[kept[i].tensor];
      const std::string tensor_key = (argument.is_output ? "output." : "") + argument.name;
      statistics[tensor_key] = {{"count", kept[i].count},
                                {"nan", kept[i].nan_count},
                                {"infinite", kept[i].infinity_count},
                                {"least", kept[i].least},
                                {"largest", kept[i].largest},
                                {"mean", kept[i].mean},
                                {"deviation", kept[i].deviation}};
      file[tensor_key] = &tensors[i];
      if (argument.is_output) continue;
      const XXH128_hash_t hash = XXH3_128bits(tensors[i].bytes.data(), tensors[i].bytes.size());
      key += fmt::format("/{}{:016x}{:016x}", tensor_key, hash.high64, hash.low64);
      if (!has_values) key += tools::json_line(statistics[tensor_key]);
    }
    const std::string uuid = uuid_of(key);
    if (!uuids_.insert(uuid).second) {
      ++out_.duplicates;
      return {};
    }
    const std::string below =
        (definition.op_type.empty() ? "other" : definition.op_type) + "/" + name;
    const std::string blob = fmt::format("blob/workloads/{}/{}_{}.safetensors", below, name, uuid);
    for (const DefinitionArgument& argument : definition.arguments) {
      const std::string tensor_key = (argument.is_output ? "output." : "") + argument.name;
      const auto value = entry.find_value(argument.name);
      if (argument.is_output) {
        if (has_values && file.count(tensor_key) != 0) {
          outputs[argument.name] = {
              {"type", "safetensors"}, {"path", blob}, {"tensor_key", tensor_key}};
        }
      } else if (argument.is_scalar && value) {
        inputs[argument.name] = {{"type", "scalar"}, {"value", scalars[argument.name]}};
        scalars.erase(argument.name);
      } else if (has_values && file.count(tensor_key) != 0) {
        inputs[argument.name] = {
            {"type", "safetensors"}, {"path", blob}, {"tensor_key", tensor_key}};
      } else {
        inputs[argument.name] = {{"type", "random"}};
      }
    }
    Json record = {{"definition", name},
                   {"workload", {{"axes", axes}, {"inputs", inputs}, {"uuid", uuid}}},
                   {"solution", nullptr},
                   {"evaluation", nullptr},
                   {"fibshim",
                    {{"note", has_values ? kPrivate : "statistics of a running program's tensors"},
                     {"pattern", entry.pattern->label},
                     {"launch", launch.number},
                     {"unix_ns", launch.unix_ns},
                     {"scalars", scalars},
                     {"outputs", outputs},
                     {"statistics", statistics}}}};
    FIBSHIM_TRY(write_definition(definition, below));
    if (has_values) {
      FIBSHIM_TRY(make_parent(output_ + "/" + blob));
      FIBSHIM_TRY(write_safetensors(output_ + "/" + blob, file, kPrivate));
      for (const auto& [tensor_key, tensor] : file) out_.bytes += tensor->bytes.size();
    }
    ++out_.workloads;
    return append_line(output_ + "/workloads/" + below + ".jsonl", tools::json_line(record));
  }

  // Copies the definition from the config folder.
  Result<void> write_definition(const Definition& definition, const std::string& below) {
    if (!definitions_.insert(definition.name.name).second) return {};
    const std::string text = FIBSHIM_TRY(read_file(*definition.name.mark.file, kMaxJsonBytes));
    return append_line(output_ + "/definitions/" + below + ".json", text);
  }

  static Result<void> make_parent(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    if (!error) return {};
    return fail(ErrorCode::operating_system, path + ": " + error.message());
  }

  static Result<void> append_line(const std::string& path, const std::string& line) {
    FIBSHIM_TRY(make_parent(path));
    std::ofstream file(path, std::ios::binary | std::ios::app);
    file << line << '\n';
    file.close();
    if (!file) return fail(ErrorCode::operating_system, path + ": cannot be written");
    return {};
  }

  const FolderModel& model_;
  const std::string output_;
  std::string plan_text_;
  TensorPlan plan_{};
  std::vector<PlannedEntry> entries_;
  std::set<std::string> uuids_, definitions_;
  CapturedWorkloads out_;
};

}  // namespace

std::string read_policy(const std::string& text, CaptureOptions* options) {
  const std::vector<std::string_view> parts = tools::split(text, ':');
  static constexpr std::pair<std::string_view, TensorPolicy> kPolicies[] = {
      {"first", TensorPolicy::first},
      {"every", TensorPolicy::every},
      {"shape", TensorPolicy::by_shape},
      {"axis", TensorPolicy::by_axis}};
  for (const auto& [name, policy] : kPolicies) {
    const size_t wanted = policy == TensorPolicy::by_axis ? 3 : 2;
    if (parts[0] != name || parts.size() != wanted) continue;
    const std::string_view count = parts.back();
    const auto [at, error] =
        std::from_chars(count.data(), count.data() + count.size(), options->count);
    if (error != std::errc() || at != count.data() + count.size() || options->count == 0) break;
    options->policy = policy;
    if (policy == TensorPolicy::by_axis) options->axis = parts[1];
    return "";
  }
  return "takes first:K, every:N, shape:K or axis:NAME:K, not '" + text + "'";
}

Result<std::string> make_tensor_plan(const FolderModel& model, const CaptureOptions& options,
                                     std::vector<std::string>* notes) {
  std::vector<PlannedEntry> entries = plan_entries(model, options.definitions, notes);
  if (options.policy == TensorPolicy::by_axis) {
    std::erase_if(entries, [&](const PlannedEntry& entry) {
      return entry.definition->find_axis(options.axis) == nullptr;
    });
  }
  if (entries.empty() || entries.size() > kMostTensorEntries) {
    return fail(ErrorCode::not_found,
                entries.empty() ? "no definition's launches can be kept" : "too many definitions");
  }
  TensorPlan plan{};
  memcpy(plan.magic, kTensorPlanMagic, sizeof plan.magic);
  plan.version = kTensorsVersion;
  plan.keeps_statistics = options.keeps_statistics;
  memcpy(plan.digest, model.digest, sizeof plan.digest);
  plan.limit_bytes = options.limit_bytes;
  plan.seconds = options.seconds;
  plan.policy = options.policy;
  plan.count = options.count;
  std::vector<TensorPlanEntry> planned;
  std::vector<TensorPlanValue> values;
  std::vector<TensorPlanTensor> tensors;
  std::vector<Step> steps;
  const auto add_steps = [&](const CompiledValue& value, auto* out) {
    out->first_step = static_cast<uint32_t>(steps.size());
    out->step_count = static_cast<uint32_t>(value.steps.size());
    steps.insert(steps.end(), value.steps.begin(), value.steps.end());
  };
  for (const PlannedEntry& entry : entries) {
    TensorPlanEntry& one = planned.emplace_back();
    copy_cut(entry.pattern->label, one.pattern);
    copy_cut(entry.definition->name.name, one.definition);
    one.first_value = static_cast<uint32_t>(values.size());
    one.value_count = static_cast<uint32_t>(entry.values.size());
    one.first_tensor = static_cast<uint32_t>(tensors.size());
    one.tensor_count = static_cast<uint32_t>(entry.tensors.size());
    one.policy_value = entry.find_value(options.axis).value_or(0);
    for (size_t i = 0; i < entry.values.size(); ++i) {
      TensorPlanValue& value = values.emplace_back();
      add_steps(entry.values[i], &value);
      value.is_axis = entry.is_axis[i];
    }
    for (size_t i = 0; i < entry.tensors.size(); ++i) {
      const DefinitionArgument& argument = *entry.tensors[i];
      TensorPlanTensor& tensor = tensors.emplace_back();
      add_steps(entry.addresses[i], &tensor);
      tensor.is_output = argument.is_output;
      set_element(*element_type_of(argument.dtype), &tensor);
      tensor.dim_count = static_cast<uint32_t>(argument.shape.size());
      for (size_t d = 0; d < argument.shape.size(); ++d) {
        tensor.dims[d] = *entry.find_value(argument.shape[d]);
      }
    }
  }
  plan.entry_count = static_cast<uint32_t>(planned.size());
  plan.value_count = static_cast<uint32_t>(values.size());
  plan.tensor_count = static_cast<uint32_t>(tensors.size());
  plan.step_count = static_cast<uint32_t>(steps.size());
  std::string out;
  append(plan, &out);
  append(planned, &out);
  append(values, &out);
  append(tensors, &out);
  append(steps, &out);
  return out;
}

Result<CapturedWorkloads> write_workloads(const FolderModel& model, const std::string& folder,
                                          const std::string& output) {
  return Writer(model, output).run(folder);
}

}  // namespace fibshim::judge
