#include "tools/judge/workloads.h"

#include <errno.h>
#include <string.h>

#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "loader/read/file.h"
#include "tools/base/files.h"
#include "tools/base/json_input.h"
#include "tools/base/terminal.h"
#include "tools/base/try.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTensorFileBytes = size_t{16} << 30;

tl::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::invalid_value, std::move(message));
}

}  // namespace

void parse_jsonl(const std::string& file, std::string_view text, const ReadRecord& read,
                 std::vector<std::string>* faults) {
  size_t number = 0;
  for (const std::string_view line : tools::split(text, '\n')) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json record = tools::parse_json<Json>(line);
    const std::string fault =
        record.is_object() ? read(std::move(record)) : std::string("not a JSON object");
    if (!fault.empty()) faults->push_back(fmt::format("{}:{}: {}", file, number, fault));
  }
}

void read_jsonl(const std::string& path, const ReadRecord& read, std::vector<std::string>* faults) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) files.push_back(path);
  if (fs::is_directory(path, error)) files = tools::paths_below(path, faults);
  std::erase_if(files, [&](const std::string& file) {
    return file != path && (!file.ends_with(".jsonl") || fs::is_directory(file, error));
  });
  for (const std::string& file : files) {
    const auto text = read_file(file, kMaxImageBytes);
    if (text) {
      parse_jsonl(file, *text, read, faults);
    } else {
      faults->push_back(text.error().message);
    }
  }
}

std::string read_workload(const Json& record, Workloads* workloads) {
  const Json* const axes = tools::find_at(record, "/workload/axes");
  const Json* const inputs = tools::find_at(record, "/workload/inputs");
  const Json* const uuid = tools::find_at(record, "/workload/uuid");
  const Json* const given = tools::find_at(record, "/workload");
  const Json* const definition = tools::find_at(record, "/definition");
  if (definition == nullptr || !definition->is_string()) return "no \"definition\"";
  if (given == nullptr || !given->is_object()) return "no \"workload\"";
  if (axes == nullptr || !axes->is_object() || inputs == nullptr || !inputs->is_object() ||
      uuid == nullptr || !uuid->is_string()) {
    return "the workload lacks one of \"axes\", \"inputs\" and \"uuid\"";
  }
  Workload workload{{}, std::make_shared<Json>(*inputs), uuid->get<std::string>()};
  for (const auto& [name, value] : axes->items()) {
    // A number above the largest int64_t reads as a negative one.
    if (!value.is_number_integer() || value.get<int64_t>() < 0) {
      return "axis \"" + name + "\" is no integer from 0 on";
    }
    workload.axes[name] = value.get<int64_t>();
  }
  if (const Json* const scalars = tools::find_at(record, "/fibshim/scalars");
      scalars != nullptr && scalars->is_object()) {
    for (const auto& [name, value] : scalars->items()) {
      if (value.is_number()) workload.scalars[name] = value.get<double>();
    }
  }
  if (const Json* const outputs = tools::find_at(record, "/fibshim/outputs");
      outputs != nullptr && outputs->is_object() && !outputs->empty()) {
    workload.outputs = std::make_shared<Json>(*outputs);
  }
  (*workloads)[definition->get<std::string>()].push_back(std::move(workload));
  return "";
}

std::string root_of_workloads(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return path;
  constexpr std::string_view kFolder = "/workloads/";
  const std::string absolute = std::filesystem::absolute(path, error).string();
  const size_t at = absolute.rfind(kFolder);
  return at == std::string::npos ? std::filesystem::path(absolute).parent_path().string()
                                 : absolute.substr(0, at);
}

Workloads read_workloads(const std::string& root, std::vector<std::string>* faults) {
  Workloads workloads;
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(root, error);
  read_jsonl(
      is_file ? root : root + "/workloads",
      [&](const Json& record) { return read_workload(record, &workloads); }, faults);
  return workloads;
}

std::string uuid_of(std::string_view key) {
  const XXH128_hash_t hash = XXH3_128bits(key.data(), key.size());
  // UUID version 8: the meaning of the bits is up to the implementation.
  const uint64_t high = (hash.high64 & ~uint64_t{0xf000}) | 0x8000;
  const uint64_t low = (hash.low64 & ~(uint64_t{3} << 62)) | uint64_t{1} << 63;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xffff,
                     high & 0xffff, low >> 48, low & 0xffffffffffff);
}

Workload made_workload(const Definition& definition, const AxisValues& variable_axes) {
  std::string key = definition.name.name;
  for (const auto& [axis, value] : variable_axes) key += fmt::format("/{}={}", axis, value);
  Json inputs = Json::object();
  for (const DefinitionArgument& argument : definition.arguments) {
    if (!argument.is_output) inputs[argument.name] = {{"type", "random"}};
  }
  return {variable_axes, std::make_shared<Json>(std::move(inputs)), uuid_of(key)};
}

namespace {

// Reads a tensor that must have the definition's dtype and shape.
Result<Tensor> read_argument(const std::string& path, const std::string& key,
                             const DefinitionArgument& argument, const AxisValues& axes,
                             const std::string& what) {
  const ElementType* const type = element_type_of(argument.dtype);
  const std::vector<int64_t> shape = shape_of(argument.shape, axes);
  Tensor read = FIBSHIM_TRY(read_safetensor(path, key));
  if (read.type == type && read.shape == shape) return read;
  return bad(fmt::format("{} is {} [{}], the definition says {} [{}]", what, read.type->name,
                         fmt::join(read.shape, ", "), kDtypes[argument.dtype].name,
                         fmt::join(shape, ", ")));
}

}  // namespace

Result<std::map<std::string, Tensor>> load_outputs(const Workload& workload,
                                                   const Definition& definition,
                                                   const AxisValues& axes,
                                                   const std::string& root) {
  std::map<std::string, Tensor> outputs;
  if (workload.outputs == nullptr) return outputs;
  for (const auto& [name, output] : workload.outputs->items()) {
    const DefinitionArgument* const argument = definition.find_argument(name);
    if (argument == nullptr || !argument->is_output) continue;
    outputs[name] = FIBSHIM_TRY(read_argument(
        root + "/" + tools::text_at(output, "/path"), tools::text_at(output, "/tensor_key"),
        *argument, axes, "output \"" + name + "\" of workload " + workload.uuid));
  }
  return outputs;
}

Result<void> load_inputs(const Workload& workload, const Definition& definition,
                         const AxisValues& axes, const std::string& root, CaseData* data) {
  for (const auto& [name, input] : workload.inputs->items()) {
    const std::string what = "input \"" + name + "\" of workload " + workload.uuid;
    const std::string type = tools::text_at(input, "/type");
    if (type == "random") continue;
    const DefinitionArgument* const argument = definition.find_argument(name);
    if (argument == nullptr || argument->is_output) {
      return bad(what + " is none of the definition's");
    }
    Tensor tensor{element_type_of(argument->dtype), shape_of(argument->shape, axes), {}};
    if (type == "scalar") {
      const Json* const value = tools::find_at(input, "/value");
      if (value == nullptr || !(value->is_number() || value->is_boolean())) {
        return bad(what + " has no number as \"value\"");
      }
      const double number = value->is_boolean() ? value->get<bool>() : value->get<double>();
      if (argument->is_scalar) {
        data->scalars[name] = number;
        continue;
      }
      if (tensor.type == nullptr || tensor.count() != 1) {
        return bad(what + " is a scalar, but the definition has a tensor");
      }
      tensor.allocate();
      tensor.set(0, number);
      data->tensors[name] = std::move(tensor);
      continue;
    }
    const Json* const path = tools::find_at(input, "/path");
    const Json* const key = tools::find_at(input, "/tensor_key");
    if (type != "safetensors" || path == nullptr || !path->is_string() || key == nullptr ||
        !key->is_string()) {
      return bad(what +
                 " is none of {random}, {scalar, value} and {safetensors, path, tensor_key}");
    }
    Tensor read = FIBSHIM_TRY(read_argument(root + "/" + path->get<std::string>(),
                                            key->get<std::string>(), *argument, axes, what));
    if (argument->is_scalar) {
      data->scalars[name] = read.at(0);
    } else {
      data->tensors[name] = std::move(read);
    }
  }
  return {};
}

Result<Tensor> read_safetensor(const std::string& path, const std::string& key) {
  const auto failed = [&](const std::string& why) { return bad(path + ": " + why); };
  // Checks this before opening: to open a FIFO waits for its writer.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return failed(error ? error.message() : "not a regular file");
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return failed(strerror(errno));
  const auto file_bytes = static_cast<uint64_t>(file.tellg());
  uint64_t header_bytes = 0;
  file.seekg(0);
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  if (!file || file_bytes > kMaxTensorFileBytes || header_bytes > kMaxJsonBytes ||
      header_bytes + sizeof header_bytes > file_bytes) {
    return failed("not a safetensors file");
  }
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const Json parsed = tools::parse_json<Json>(header);
  if (!file || parsed.is_discarded() || !parsed.is_object())
    return failed("not a safetensors file");
  const auto entry = parsed.find(key);
  if (entry == parsed.end()) return failed("it has no tensor \"" + key + "\"");
  try {
    Tensor tensor{find_safetensors_type(entry->at("dtype").get<std::string>()), {}, {}};
    if (tensor.type == nullptr) return failed("\"" + key + "\" has a dtype that is not known");
    for (const Json& extent : entry->at("shape")) {
      tensor.shape.push_back(tools::integer_of<int64_t>(extent));
    }
    const auto begin = tools::integer_of<uint64_t>(entry->at("data_offsets").at(0));
    const auto end = tools::integer_of<uint64_t>(entry->at("data_offsets").at(1));
    const uint64_t room = file_bytes - sizeof header_bytes - header_bytes;
    uint64_t wanted = tensor.type->bytes;
    for (const int64_t extent : tensor.shape) {
      if (extent < 0 || (extent > 0 && wanted > room / static_cast<uint64_t>(extent))) {
        return failed("\"" + key + "\" is larger than the file");
      }
      wanted *= static_cast<uint64_t>(extent);
    }
    if (begin > end || end > room || end - begin != wanted) {
      return failed("the offsets of \"" + key + "\" do not fit its shape");
    }
    tensor.bytes.resize(wanted);
    file.seekg(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + begin));
    file.read(reinterpret_cast<char*>(tensor.bytes.data()), static_cast<std::streamsize>(wanted));
    if (!file) return failed("cut short");
    return tensor;
  } catch (const std::exception& fault) {
    return failed(fault.what());
  }
}

Result<void> write_safetensors(const std::string& path,
                               const std::map<std::string, const Tensor*>& tensors,
                               const std::string& note) {
  Json header = Json::object();
  if (!note.empty()) header["__metadata__"] = {{"note", note}};
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor->type->safetensors},
                    {"shape", tensor->shape},
                    {"data_offsets", {at, at + tensor->bytes.size()}}};
    at += tensor->bytes.size();
  }
  const std::string text = tools::json_line(header);
  const uint64_t header_bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  file << text;
  for (const auto& [name, tensor] : tensors) {
    file.write(reinterpret_cast<const char*>(tensor->bytes.data()),
               static_cast<std::streamsize>(tensor->bytes.size()));
  }
  file.close();
  if (!file) return fail(ErrorCode::operating_system, path + ": cannot be written");
  return {};
}

}  // namespace fibshim::judge
