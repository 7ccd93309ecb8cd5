#include "tools/judge/references.h"

#include <math.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "tools/base/terminal.h"
#include "tools/judge/quantization.h"

namespace fibshim::judge {
namespace {

using Names = std::initializer_list<std::string_view>;

const Names kX = {"hidden_states", "input", "x", "logits", "probs"};
const Names kWeight = {"weight", "gamma", "w"};
const Names kBias = {"bias", "beta"};
const Names kOutput = {"output", "out", "y", "probs", "renorm_probs"};
const Names kResidualOutput = {"residual_output", "residual_out", "updated_residual",
                               "new_residual", "residual"};

// Finds the tensors of one request, and remembers the first that is missing.
class Roles {
 public:
  explicit Roles(const ReferenceRequest& request)
      : request_(request), is_covered_(request.outputs.size(), false) {}

  const Tensor* find(Names names) const {
    for (const std::string_view name : names) {
      const auto at = request_.data.tensors.find(std::string(name));
      if (at == request_.data.tensors.end()) continue;
      read_.insert(at->first);
      return &at->second;
    }
    return nullptr;
  }
  const Tensor* require(Names names) {
    const Tensor* const tensor = find(names);
    if (tensor == nullptr && missing_.empty()) missing_ = *names.begin();
    return tensor;
  }
  // Index of the output, or -1: it is not wanted.
  int output(Names names) {
    for (const std::string_view name : names) {
      for (size_t i = 0; i < request_.outputs.size(); ++i) {
        if (request_.outputs[i].name != name) continue;
        is_covered_[i] = true;
        return static_cast<int>(i);
      }
    }
    return -1;
  }
  // The name of an output that the operation asked for by no name; "" when there is none.
  std::string uncovered() const {
    for (size_t i = 0; i < is_covered_.size(); ++i) {
      if (!is_covered_[i]) return request_.outputs[i].name;
    }
    return "";
  }
  // The name of an input of several elements that the operation asked for by no name; "" when there is none.
  std::string unread() const {
    for (const DefinitionArgument& input : request_.definition.arguments) {
      const auto at = request_.data.tensors.find(input.name);
      if (!input.is_output && at != request_.data.tensors.end() && at->second.count() > 1 &&
          !read_.contains(input.name)) {
        return input.name;
      }
    }
    return "";
  }
  const OutputSpec* spec(int output) const {
    return output < 0 ? nullptr : &request_.outputs[static_cast<size_t>(output)];
  }
  double scalar(Names names, double otherwise) const {
    for (const std::string_view name : names) {
      const auto at = request_.data.scalars.find(std::string(name));
      if (at != request_.data.scalars.end()) return at->second;
      // A scalar may come as a tensor of one element.
      const auto tensor = request_.data.tensors.find(std::string(name));
      if (tensor != request_.data.tensors.end() && tensor->second.count() == 1) {
        return tensor->second.at(0);
      }
    }
    return otherwise;
  }
  // One for each row, whether given as a scalar or as a tensor.
  std::function<double(int64_t)> per_row(Names names, double otherwise) const {
    const Tensor* const tensor = find(names);
    if (tensor != nullptr && tensor->count() > 1) {
      return [tensor](int64_t row) { return tensor->at(row); };
    }
    const double value = scalar(names, otherwise);
    return [value](int64_t) { return value; };
  }
  const std::string& missing() const { return missing_; }
  const ReferenceRequest& request() const { return request_; }

 private:
  const ReferenceRequest& request_;
  std::string missing_;
  std::vector<bool> is_covered_;
  mutable std::set<std::string> read_;
};

void load(const Tensor& tensor, int64_t first, int64_t count, double* to) {
  const uint8_t* at = tensor.bytes.data() + static_cast<size_t>(first) * tensor.type->bytes;
  for (int64_t i = 0; i < count; ++i, at += tensor.type->bytes) to[i] = tensor.type->load(at);
}

std::shared_ptr<std::vector<double>> load_all(const Tensor* tensor) {
  if (tensor == nullptr) return nullptr;
  auto values = std::make_shared<std::vector<double>>(static_cast<size_t>(tensor->count()));
  load(*tensor, 0, tensor->count(), values->data());
  return values;
}

// rmsnorm, layernorm and what is fused with them.
struct NormKind {
  bool subtracts_mean = false;
  bool adds_residual = false;
  bool rounds_sum = false;     // the sum goes on in the residual's own type (vLLM)
  bool rounds_normed = false;  // x * r is rounded before it is multiplied by the weight (vLLM)
  bool is_quantized = false;
  double weight_bias = 0;
};

Quantization find_quantization(Roles* roles, std::string_view op) {
  Quantization found;
  const Tensor* const x = op.find("then_quant") == op.npos ? nullptr : roles->require(kX);
  if (x == nullptr) return found;
  found.type = x->type;
  found.quantized = roles->output({"quantized"});
  found.scales = roles->output({"scales"});
  found.scale = roles->scalar({"scale"}, 1);
  bool is_per_block = false;
  if (found.scales >= 0 && op.ends_with("per_block")) {
    const std::vector<int64_t>& shape = roles->spec(found.scales)->shape;
    is_per_block = shape.size() == 2 && shape.back() > 0;
    if (is_per_block) found.blocks = static_cast<size_t>(shape.back());
  }
  found.least = is_per_block ? roles->scalar({"least"}, 1e-10) : 1.0 / 512;
  found.rounds_first = found.quantized >= 0 && !is_per_block;
  return found;
}

RowReference make_norm(Roles* roles, NormKind kind, const Quantization& then) {
  const Tensor* const x = roles->require(kX);
  const Tensor* const residual = kind.adds_residual ? roles->require({"residual"}) : nullptr;
  const auto weight = load_all(roles->find(kWeight));
  const auto bias = load_all(kind.subtracts_mean ? roles->find(kBias) : nullptr);
  const double eps = roles->scalar({"eps", "epsilon"}, 1e-6);
  const double scale = kind.is_quantized ? roles->scalar({"scale"}, 1) : 1;
  kind.weight_bias = roles->scalar({"weight_bias"}, kind.weight_bias);
  kind.rounds_normed = roles->scalar({"rounds_before_weight"}, kind.rounds_normed) != 0;
  const int y = roles->output(kOutput);
  const int sum = kind.adds_residual ? roles->output(kResidualOutput) : -1;
  const int mean_out = roles->output({"mean"}), rstd_out = roles->output({"rstd", "inv_rms"});
  if (x == nullptr || (kind.adds_residual && residual == nullptr)) return nullptr;
  const ElementType* const sum_type = sum >= 0              ? roles->spec(sum)->type
                                      : residual != nullptr ? residual->type
                                                            : x->type;
  const int64_t width = x->shape.back();
  return [=](int64_t row, double* const* out) {
    std::vector<double> values(static_cast<size_t>(width));
    load(*x, row * width, width, values.data());
    if (residual != nullptr) {
      std::vector<double> added(static_cast<size_t>(width));
      load(*residual, row * width, width, added.data());
      for (int64_t i = 0; i < width; ++i) {
        double& value = values[static_cast<size_t>(i)];
        value += added[static_cast<size_t>(i)];
        if (kind.rounds_sum) value = rounded_to(*sum_type, value);
      }
      if (sum >= 0) std::copy(values.begin(), values.end(), out[sum]);
    }
    double mean = 0;
    if (kind.subtracts_mean) {
      for (const double value : values) mean += value;
      mean /= static_cast<double>(width);
    }
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    const double factor = 1 / sqrt(squares / static_cast<double>(width) + eps);
    if (mean_out >= 0) out[mean_out][0] = mean;
    if (rstd_out >= 0) out[rstd_out][0] = factor;
    if (y < 0) return;
    for (size_t i = 0; i < values.size(); ++i) {
      double value = (values[i] - mean) * factor;
      if (kind.rounds_normed) value = rounded_to(*x->type, value);
      if (weight != nullptr) value *= (*weight)[i] + kind.weight_bias;
      if (bias != nullptr) value += (*bias)[i];
      out[y][i] = kind.is_quantized ? std::clamp(value / scale, -kLargestFp8, kLargestFp8) : value;
    }
    then.run(out[y], values.size(), out);
  };
}

double silu(double x) { return x / (1 + exp(-x)); }
double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

template <double (*activation)(double), bool activates_first = true>
RowReference make_act_and_mul(Roles* roles, std::string_view op) {
  const Tensor* const x = roles->require(kX);
  const int y = roles->output(kOutput);
  const Quantization then = find_quantization(roles, op);
  if (x == nullptr || y < 0) return nullptr;
  const int64_t half = x->width() / 2;
  return [=](int64_t row, double* const* out) {
    std::vector<double> values(static_cast<size_t>(2 * half));
    load(*x, row * 2 * half, 2 * half, values.data());
    for (int64_t i = 0; i < half; ++i) {
      const size_t first = static_cast<size_t>(i), second = static_cast<size_t>(half + i);
      double activated = activation(values[activates_first ? first : second]);
      // vLLM rounds it: what is quantised next is the engine's own output.
      if (then.rounds_first) activated = rounded_to(*x->type, activated);
      out[y][i] = activated * values[activates_first ? second : first];
    }
    then.run(out[y], static_cast<size_t>(half), out);
  };
}

// Both halves within a limit, the second plus beta.
RowReference make_silu_and_mul_clamp(Roles* roles) {
  const Tensor* const x = roles->require(kX);
  const int y = roles->output(kOutput);
  if (x == nullptr || y < 0) return nullptr;
  const double limit = roles->scalar({"limit"}, INFINITY);
  const double alpha = roles->scalar({"alpha"}, 1), beta = roles->scalar({"beta"}, 0);
  const int64_t half = x->width() / 2;
  return [=](int64_t row, double* const* out) {
    std::vector<double> values(static_cast<size_t>(2 * half));
    load(*x, row * 2 * half, 2 * half, values.data());
    for (int64_t i = 0; i < half; ++i) {
      const double gate = std::min(values[static_cast<size_t>(i)], limit);
      const double up = std::clamp(values[static_cast<size_t>(half + i)], -limit, limit);
      out[y][i] = gate / (1 + exp(-alpha * gate)) * (up + beta);
    }
  };
}

RowReference make_softmax(Roles* roles) {
  const Tensor* const x = roles->require({"logits", "input", "x", "hidden_states"});
  const int y = roles->output(kOutput);
  if (x == nullptr || y < 0) return nullptr;
  const auto temperature = roles->per_row({"temperature"}, 1);
  const int64_t width = x->shape.back();
  return [=](int64_t row, double* const* out) {
    double* const values = out[y];
    load(*x, row * width, width, values);
    const double scale = temperature(row);
    const double largest = *std::max_element(values, values + width);
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += values[i] = exp((values[i] - largest) / scale);
    for (int64_t i = 0; i < width; ++i) values[i] /= sum;
  };
}

// Rotates the first rotary_dim elements of each head of query and key. The cache's rows hold the
// cosines, then the sines, of half as many angles.
RowReference make_rope(Roles* roles) {
  const Tensor* const query = roles->require({"query", "q"});
  const Tensor* const key = roles->find({"key", "k"});
  const Tensor* const cache = roles->require({"cos_sin_cache", "cache"});
  const Tensor* const positions = roles->require({"positions", "pos_ids"});
  const int query_out = roles->output({"query_out", "q_out", "q_rope", "query"});
  const int key_out = roles->output({"key_out", "k_out", "k_rope", "key"});
  if (query == nullptr || cache == nullptr || positions == nullptr) return nullptr;
  const Definition& definition = roles->request().definition;
  const bool is_interleaved =
      roles->scalar({"interleave"}, 0) != 0 ||
      roles->scalar({"is_neox", "is_neox_style"}, 1) == 0 ||
      std::ranges::find(definition.tags, "rope:interleaved") != definition.tags.end();
  const int64_t rotary = cache->width();
  int64_t head = query->shape.size() > 2 ? query->shape.back() : rotary;
  for (const char* const name : {"head_size", "head_dim"}) {
    const auto axis = roles->request().data.axes.find(name);
    if (axis != roles->request().data.axes.end()) head = axis->second;
  }
  const auto rotate = [=](const Tensor& tensor, int64_t row, double* out) {
    const int64_t width = tensor.width();
    load(tensor, row * width, width, out);
    std::vector<double> angles(static_cast<size_t>(rotary));
    load(*cache, static_cast<int64_t>(positions->at(row)) * rotary, rotary, angles.data());
    for (int64_t start = 0; start + head <= width; start += head) {
      for (int64_t i = 0; i < rotary / 2; ++i) {
        double& a = out[start + (is_interleaved ? 2 * i : i)];
        double& b = out[start + (is_interleaved ? 2 * i + 1 : i + rotary / 2)];
        const double cosine = angles[static_cast<size_t>(i)];
        const double sine = angles[static_cast<size_t>(rotary / 2 + i)];
        const double rotated = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = rotated;
      }
    }
  };
  return [=](int64_t row, double* const* out) {
    if (query_out >= 0) rotate(*query, row, out[query_out]);
    if (key != nullptr && key_out >= 0) rotate(*key, row, out[key_out]);
  };
}

// The k largest probabilities (all that equal the kth, too), or the fewest that reach p, summing
// to one.
template <bool is_top_k>
RowReference make_renorm(Roles* roles) {
  const Tensor* const x = roles->require({"probs"});
  const int y = roles->output({"renorm_probs", "output", "out", "renormed_probs"});
  if (x == nullptr || y < 0) return nullptr;
  const int64_t width = x->width();
  const auto limit = is_top_k ? roles->per_row({"top_k", "k"}, static_cast<double>(width))
                              : roles->per_row({"top_p", "p"}, 1);
  return [=](int64_t row, double* const* out) {
    double* const values = out[y];
    load(*x, row * width, width, values);
    std::vector<double> sorted(values, values + width);
    std::ranges::sort(sorted, std::greater<>());
    double least = 0;
    if (is_top_k) {
      least = sorted[static_cast<size_t>(
                         std::clamp<int64_t>(static_cast<int64_t>(limit(row)), 1, width)) -
                     1];
    } else {
      double reached = 0;
      for (size_t i = 0; i < sorted.size() && reached < limit(row); ++i) {
        least = sorted[i];
        reached += sorted[i];
      }
    }
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += values[i] = values[i] >= least ? values[i] : 0;
    for (int64_t i = 0; i < width; ++i) values[i] /= sum;
  };
}

RowReference make_norm_op(Roles* roles, std::string_view op) {
  NormKind kind;
  const auto has = [&](std::string_view part) { return op.find(part) != std::string_view::npos; };
  kind.subtracts_mean = has("layernorm");
  kind.adds_residual = has("fused_add");
  const Quantization then = find_quantization(roles, op);
  kind.is_quantized = has("quant") && !has("then_quant");
  kind.rounds_sum = has("_vllm");
  kind.rounds_normed = has("_vllm") && roles->scalar({"rounds_before_weight"}, 1) != 0;
  kind.rounds_sum = kind.rounds_sum || then.rounds_first;
  kind.weight_bias = has("gemma") ? 1 : 0;
  return make_norm(roles, kind, then);
}

struct Op {
  const char* name;
  RowReference (*make)(Roles* roles, std::string_view op);  // null: a sampling operation
};

template <RowReference (*make)(Roles*)>
RowReference make_op(Roles* roles, std::string_view) {
  return make(roles);
}

constexpr Op kOps[] = {
    {"rmsnorm", make_norm_op},
    {"rmsnorm_vllm", make_norm_op},
    {"gemma_rmsnorm", make_norm_op},
    {"layernorm", make_norm_op},
    {"fused_add_rmsnorm", make_norm_op},
    {"fused_add_rmsnorm_vllm", make_norm_op},
    {"gemma_fused_add_rmsnorm", make_norm_op},
    {"rmsnorm_quant", make_norm_op},
    {"rmsnorm_quant_vllm", make_norm_op},
    {"fused_add_rmsnorm_quant", make_norm_op},
    {"fused_add_rmsnorm_quant_vllm", make_norm_op},
    {"fused_add_rmsnorm_then_quant", make_norm_op},
    {"fused_add_rmsnorm_then_quant_per_block", make_norm_op},
    {"silu_and_mul", make_act_and_mul<silu>},
    {"silu_and_mul_clamp", make_op<make_silu_and_mul_clamp>},
    {"silu_and_mul_then_quant", make_act_and_mul<silu>},
    {"silu_and_mul_then_quant_per_block", make_act_and_mul<silu>},
    {"mul_and_silu", make_act_and_mul<silu, false>},
    {"gelu_and_mul", make_act_and_mul<gelu>},
    {"gelu_tanh_and_mul", make_act_and_mul<gelu_tanh>},
    {"softmax", make_op<make_softmax>},
    {"rope_cos_sin_cache", make_op<make_rope>},
    {"top_k_renorm_probs", make_op<make_renorm<true>>},
    {"top_p_renorm_probs", make_op<make_renorm<false>>},
    {"sampling_from_probs", nullptr},
    {"top_k_sampling", nullptr},
    {"top_p_sampling", nullptr},
    {"top_k_top_p_sampling", nullptr},
    {"min_p_sampling", nullptr},
};

const Op* op_named(std::string_view name) { return tools::find_row(kOps, &Op::name, name); }

// FlashInfer's buffers beside the definition's own: one value a row.
constexpr ExtraOutput kExtraOutputs[] = {
    {"rstd", "float32"}, {"inv_rms", "float32"}, {"mean", "float32"}};

}  // namespace

std::string find_op(const Definition& definition, std::string_view wanted) {
  if (!wanted.empty()) return op_named(wanted) != nullptr ? std::string(wanted) : "";
  const std::string_view name = definition.name.name;
  const Op* best = nullptr;
  for (const Op& op : kOps) {
    const std::string_view known = op.name;
    const bool fits = name.substr(0, known.size()) == known &&
                      (name.size() == known.size() || name[known.size()] == '_');
    if (fits && (best == nullptr || known.size() > std::string_view(best->name).size())) best = &op;
  }
  if (best == nullptr) best = op_named(definition.op_type);
  if (best == nullptr) return "";
  const bool is_vllm = std::ranges::find(definition.tags, "rounding:vllm") != definition.tags.end();
  const std::string rounded = std::string(best->name) + "_vllm";
  return is_vllm && op_named(rounded) != nullptr ? rounded : best->name;
}

bool is_sampling_op(std::string_view op) {
  const Op* const found = op_named(op);
  return found != nullptr && found->make == nullptr;
}

const ExtraOutput* find_extra_output(std::string_view op, std::string_view name) {
  if (op.find("norm") == std::string_view::npos) return nullptr;
  return tools::find_row(kExtraOutputs, &ExtraOutput::name, name);
}

Result<RowReference> make_reference(const ReferenceRequest& request) {
  const Op* const op = op_named(request.op);
  if (op == nullptr || op->make == nullptr) {
    return fail(ErrorCode::not_found, "no native reference for " + request.definition.name.name);
  }
  Roles roles(request);
  RowReference reference = op->make(&roles, request.op);
  if (!reference) {
    return fail(ErrorCode::not_found,
                roles.missing().empty() ? "the definition has no output that the reference of \"" +
                                              std::string(request.op) + "\" knows"
                                        : "the reference of \"" + std::string(request.op) +
                                              "\" needs an input \"" + roles.missing() + "\"");
  }
  // Judging by values that nobody computed would be worse than not judging.
  if (const std::string name = roles.uncovered(); !name.empty()) {
    return fail(ErrorCode::not_found, "the reference of \"" + std::string(request.op) +
                                          "\" does not know the output \"" + name + "\"");
  }
  if (const std::string name = roles.unread(); !name.empty()) {
    return fail(ErrorCode::not_found, "the reference of \"" + std::string(request.op) +
                                          "\" does not read the input \"" + name + "\"");
  }
  return reference;
}

void load_row(const Tensor& tensor, int64_t row, double* to) {
  load(tensor, row * tensor.width(), tensor.width(), to);
}

void for_each_row(const RowReference& reference, const std::vector<OutputSpec>& outputs,
                  const std::vector<int64_t>& rows,
                  const std::function<void(size_t index, double* const* values)>& use) {
  constexpr size_t kRowsAtOnce = 4;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    std::vector<std::vector<double>> buffers;
    std::vector<double*> pointers;
    for (const OutputSpec& output : outputs) {
      buffers.emplace_back(static_cast<size_t>(Tensor{output.type, output.shape, {}}.width()));
      pointers.push_back(buffers.back().data());
    }
    for (size_t begin; (begin = next.fetch_add(kRowsAtOnce)) < rows.size();) {
      for (size_t i = begin; i < std::min(begin + kRowsAtOnce, rows.size()); ++i) {
        reference(rows[i], pointers.data());
        use(i, pointers.data());
      }
    }
  };
  const size_t wanted = (rows.size() + kRowsAtOnce - 1) / kRowsAtOnce;
  const size_t count = std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), wanted);
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
}

std::vector<Comparison> compare_rows(const RowReference& reference,
                                     const std::vector<OutputSpec>& outputs,
                                     const std::vector<int64_t>& rows,
                                     const std::vector<Tensor>& found,
                                     const std::vector<Tolerance>& tolerances) {
  std::vector<Comparison> comparisons(outputs.size());
  std::mutex lock;
  for_each_row(reference, outputs, rows, [&](size_t index, double* const* expected) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const int64_t width = found[i].width();
      std::vector<double> values(static_cast<size_t>(width));
      load_row(found[i], rows[index], values.data());
      Comparison one;
      one.add(values.data(), expected[i], width, rows[index] * width, tolerances[i]);
      const std::lock_guard guard(lock);
      comparisons[i].merge(one);
    }
  });
  return comparisons;
}

}  // namespace fibshim::judge
