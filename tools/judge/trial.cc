#include "tools/judge/trial.h"

#include <math.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include <fmt/format.h>

#include "tools/judge/compare.h"
#include "tools/judge/inputs.h"
#include "tools/judge/references.h"
#include "tools/judge/sampling.h"

namespace fibshim::judge {
namespace {

// Zones before and after every buffer, of values that are NaN in every floating-point type of two or
// four bytes: what reads them computes NaN, what writes them is found.
constexpr size_t kGuardBytes = 4096;
constexpr uint32_t kGuardWord = 0xffc1ffc1;
// Outputs before a run: NaN in every floating-point type, -1 in every integer.
constexpr uint8_t kPoison = 0xff;

// More elements than this are judged on some of their rows: the first, the last, and every nth.
constexpr int64_t kMostElements = int64_t{1} << 24;

constexpr int kGraphLaunches = 20;
constexpr int kVerifyWarmups = 3, kVerifyIterations = 10;
constexpr int64_t kSampleBatchBytes = int64_t{64} << 20;
constexpr int64_t kMostSampleRows = 5000;
constexpr uint64_t kFlushFactor = 2;
constexpr size_t kWord = sizeof(uint32_t);

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

std::vector<int64_t> choose_rows(int64_t rows, int64_t width) {
  const int64_t most = std::max<int64_t>(64, kMostElements / std::max<int64_t>(width, 1));
  std::vector<int64_t> chosen;
  if (rows <= most) {
    chosen.resize(static_cast<size_t>(rows));
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  // An odd step meets every lane and tile of a block sooner or later.
  const int64_t step = (rows / (most - 32)) | 1;
  for (int64_t row = 0; row < rows; row += step) chosen.push_back(row);
  for (int64_t row = rows - 16; row < rows; ++row) {
    if (row % step != 0) chosen.push_back(row);
  }
  return chosen;
}

tl::unexpected<Error> pass_on(const Error& error) { return tl::unexpected<Error>(error); }

void find_wrong(std::string why, CaseOutcome* outcome) {
  outcome->status = kIncorrect;
  if (outcome->log.empty()) outcome->log = std::move(why);
}

std::string run_words(int run) { return run == 0 ? "" : fmt::format(" (run {})", run + 1); }

}  // namespace

// The device's side of one run.
struct Trial::Buffers {
  struct Item {
    const BufferSpec* spec;
    CUdeviceptr base = 0;
    size_t offset = 0;  // of the data, from the base
    size_t bytes = 0;
    size_t total = 0;
    CUdeviceptr data() const { return base + offset; }
  };

  explicit Buffers(Gpu* used) : gpu(used) {}
  ~Buffers() {
    for (const Item& item : items) (void)gpu->release(item.base);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Result<void> allocate(const std::vector<BufferSpec>& specs, bool is_misaligned) {
    for (const BufferSpec& spec : specs) {
      if (!spec.shares.empty()) continue;
      Item item;
      item.spec = &spec;
      item.bytes = spec.type->bytes;
      for (const int64_t extent : spec.shape) item.bytes *= static_cast<size_t>(extent);
      item.offset = kGuardBytes + (is_misaligned ? spec.type->bytes : 0);
      item.total = (item.offset + item.bytes + kGuardBytes + kWord - 1) / kWord * kWord;
      const auto memory = gpu->allocate(item.total);
      if (!memory) return pass_on(memory.error());
      item.base = *memory;
      items.push_back(item);
      addresses[spec.name] = item.data();
    }
    for (const BufferSpec& spec : specs) {
      if (!spec.shares.empty()) addresses.emplace(spec.name, addresses.at(spec.shares));
    }
    return {};
  }

  // Guards and poison everywhere, then the inputs.
  Result<void> prepare(const CaseData& data) {
    for (const Item& item : items) {
      if (auto done = gpu->fill32(item.base, kGuardWord, item.total / kWord); !done) return done;
      if (auto done = gpu->fill8(item.data(), kPoison, item.bytes); !done) return done;
    }
    if (auto done = gpu->synchronize(); !done) return done;
    for (const Item& item : items) {
      if (item.spec->is_output) continue;
      const Tensor& tensor = data.tensors.at(item.spec->name);
      if (auto done = gpu->to_device(item.data(), tensor.bytes.data(), tensor.bytes.size());
          !done) {
        return done;
      }
    }
    return {};
  }

  // What was written where nothing may be written; "" when nothing was.
  Result<std::string> find_overrun() {
    std::vector<uint8_t> zone;
    for (const Item& item : items) {
      const size_t zones[2][2] = {{0, item.offset}, {item.offset + item.bytes, item.total}};
      for (const auto& [begin, end] : zones) {
        zone.resize(end - begin);
        if (auto done = gpu->to_host(zone.data(), item.base + begin, zone.size()); !done) {
          return pass_on(done.error());
        }
        for (size_t i = 0; i < zone.size(); ++i) {
          const auto expected = static_cast<uint8_t>(kGuardWord >> 8 * ((begin + i) % kWord));
          if (zone[i] == expected) continue;
          const bool is_before = begin == 0;
          return fmt::format("it writes {} \"{}\": {} bytes {} it", is_before ? "before" : "past",
                             item.spec->name, is_before ? item.offset - i : i + 1,
                             is_before ? "ahead of" : "beyond");
        }
      }
    }
    return std::string();
  }

  // The input that was changed though no output lies in it.
  Result<std::string> find_changed_input(const CaseData& data,
                                         const std::vector<BufferSpec>& specs) {
    std::vector<uint8_t> found;
    for (const Item& item : items) {
      const bool is_shared = std::any_of(specs.begin(), specs.end(), [&](const BufferSpec& spec) {
        return spec.is_output && spec.shares == item.spec->name;
      });
      if (item.spec->is_output || is_shared) continue;
      const Tensor& tensor = data.tensors.at(item.spec->name);
      found.resize(tensor.bytes.size());
      if (auto done = gpu->to_host(found.data(), item.data(), found.size()); !done) {
        return pass_on(done.error());
      }
      if (found != tensor.bytes) {
        return fmt::format("it writes the input \"{}\"", item.spec->name);
      }
    }
    return std::string();
  }

  Gpu* gpu;
  std::vector<Item> items;
  std::map<std::string, uint64_t> addresses;
};

Result<std::unique_ptr<Trial>> Trial::make(Gpu* gpu, const Folder& folder, uint32_t solution_index,
                                           const TrialOptions& options) {
  std::unique_ptr<Trial> trial(new Trial(gpu, folder, options));
  const SolutionSpec& solution = folder.model.solutions[solution_index];
  const auto definition = std::find_if(
      folder.model.definitions.begin(), folder.model.definitions.end(),
      [&](const Definition& one) { return one.name.name == solution.definition.name; });
  if (definition == folder.model.definitions.end()) {
    return fail(ErrorCode::not_found, "it has no definition");
  }
  const VerifyBlock& verify = folder.verify_blocks.of(solution);
  trial->subject_ = {&*definition, &solution, &verify, find_op(*definition, verify.op)};
  if (!verify.op.empty() && trial->subject_.op.empty()) {
    return fail(ErrorCode::invalid_value,
                "\"verify\" names the operation \"" + verify.op + "\", which is not known");
  }
  if (solution.error_code != ErrorCode::success) {
    return fail(ErrorCode::invalid_image, solution.error_message);
  }

  const Snapshot& snapshot = *folder.report.snapshot;
  const Solution& built = snapshot.begin(snapshot.solutions)[solution_index];
  int best = -1;
  uint32_t best_rank = 0;
  for (uint32_t i = 0; i < built.images.count; ++i) {
    const uint32_t rank =
        image_rank(snapshot.begin(built.images)[i], static_cast<uint32_t>(gpu->info().sm));
    if (rank <= best_rank) continue;
    best = static_cast<int>(i);
    best_rank = rank;
  }
  if (best < 0) {
    return fail(ErrorCode::no_binary_for_gpu, fmt::format("no image for sm_{}", gpu->info().sm));
  }
  const LoaderApi* const loader = fibloader_api(kLoaderApiVersion);
  ImageBytes bytes{};
  char message[512] = "";
  const int read = loader->read_image(&snapshot, solution_index, static_cast<uint32_t>(best),
                                      &bytes, message, sizeof message);
  if (read != 0) return fail(static_cast<ErrorCode>(read), message);
  const auto is_one = [&](uint32_t index) {
    const auto& expression = solution.geometry[index].expression;
    const auto& root = expression.node(expression.root());
    return root.kind == Expression::Kind::integer && root.integer == 1;
  };
  const bool has_cluster = !is_one(kClusterX) || !is_one(kClusterY) || !is_one(kClusterZ);
  auto kernel = gpu->load_kernel({static_cast<const char*>(bytes.data), bytes.size},
                                 solution.kernel.name, has_cluster);
  loader->release_image(&bytes);
  if (!kernel) return pass_on(kernel.error());
  trial->kernel_ = *kernel;

  for (const Variant& variant : find_variants(folder.model, solution_index)) {
    trial->calls_.emplace_back(variant, Call(trial->subject_, variant, snapshot, folder.recorded));
  }
  const bool wants_python = !options.python.empty() && !is_sampling_op(trial->subject_.op);
  if (wants_python && !definition->reference.empty()) {
    auto python = PythonReference::start(options.python, *definition);
    if (!python) return pass_on(python.error());
    trial->python_ = std::move(*python);
  } else if (trial->subject_.op.empty()) {
    return fail(ErrorCode::not_found,
                "no native reference is known by the definition's name or op_type; give --python, "
                "or a \"verify\": {\"op\": ...}");
  }
  return trial;
}

CaseOutcome Trial::judge(const Workload& workload) {
  CaseOutcome outcome;
  AxisValues axes = workload.axes;
  for (const DefinitionAxis& axis : subject_.definition->axes) {
    if (axis.is_const) {
      axes[axis.name] = axis.value;
    } else if (axes.count(axis.name) == 0) {
      outcome.status = kRuntimeError;
      outcome.log = "the workload has no value for the axis \"" + axis.name + "\"";
      return outcome;
    }
  }
  for (const auto& [variant, call] : calls_) {
    CaseOutcome one;
    const auto done = judge_variant(call, variant, workload, axes, &one);
    if (!done) {
      one.status = kRuntimeError;
      one.log = done.error().message;
    }
    if (const std::string note = call.note(); !note.empty()) {
      one.log += (one.log.empty() ? "" : "; ") + note;
    }
    if (!one.log.empty() && calls_.size() > 1) {
      one.log = fmt::format("called as by pattern \"{}\": {}", variant.name, one.log);
    }
    merge(one, &outcome);
    if (!done) break;
  }
  return outcome;
}

Result<void> Trial::judge_variant(const Call& call, const Variant&, const Workload& workload,
                                  const AxisValues& axes, CaseOutcome* outcome) {
  outcome->status = kSkipped;
  if (is_sampling_op(subject_.op)) {
    const auto ran = sample(call, workload, axes, outcome);
    if (!ran) return pass_on(ran.error());
    return {};
  }
  const int runs = options_.is_bench ? 1 : options_.runs;
  for (int run = 0; run < runs; ++run) {
    const auto ran = run_once(call, workload, axes, run, false, outcome);
    if (!ran) return pass_on(ran.error());
    if (!*ran || outcome->status != kPassed) return {};
  }
  if (options_.is_bench) return {};
  // Buffers that begin in the middle of a vector: either a `where` keeps them out, or the kernel
  // copes.
  const CaseOutcome aligned = *outcome;
  const auto ran = run_once(call, workload, axes, 0, true, outcome);
  if (!ran) {
    return fail(ran.error().code,
                "with buffers aligned to one element only, which its \"where\" "
                "admits: " +
                    ran.error().message);
  }
  if (outcome->status != kPassed && *ran) {
    outcome->log =
        "with buffers aligned to one element only, which its \"where\" admits: " + outcome->log;
  } else {
    *outcome = aligned;
  }
  return {};
}

Result<CaseData> Trial::make_data(const Call& call, const Workload& workload,
                                  const AxisValues& axes, int run) const {
  CaseData data;
  data.axes = axes;
  const Definition& definition = *subject_.definition;
  if (auto done = load_inputs(workload, definition, axes, options_.data_root, &data); !done) {
    return pass_on(done.error());
  }
  const auto range_of = [&](std::string_view name) -> Result<IntegerRange> {
    const VerifyArgument* const told = subject_.verify->find_argument(name);
    if (told == nullptr || told->kind != VerifyArgument::Kind::range) return IntegerRange{0, 0};
    const auto low = evaluate(told->expression->expression, axes);
    const auto high = evaluate(told->high->expression, axes);
    if (!low) return pass_on(low.error());
    if (!high) return pass_on(high.error());
    return IntegerRange{*low, *high};
  };
  if (auto done = make_inputs({definition, subject_.op, axes, run, range_of}, &data); !done) {
    return pass_on(done.error());
  }
  const bool states_eps = data.scalars.count("eps") != 0;
  call.add_scalars(run, &data);
  // A kernel that takes eps gets others, too; one that does not is held to the reference's own.
  constexpr double kEpsFactors[] = {1, 10, 1e4};
  if (data.scalars.count("eps") == 0) {
    data.scalars["eps"] = eps_of(definition);
  } else if (call.takes("eps") && !states_eps && !python_ && !call.is_pinned("eps")) {
    data.scalars["eps"] *= kEpsFactors[run % 3];
  }
  return data;
}

Result<bool> Trial::run_once(const Call& call, const Workload& workload, const AxisValues& axes,
                             int run, bool is_misaligned, CaseOutcome* outcome) {
  const auto specs = call.buffers(axes);
  if (!specs) return pass_on(specs.error());
  const auto data = make_data(call, workload, axes, run);
  if (!data) return pass_on(data.error());
  Buffers buffers(gpu_);
  if (auto done = buffers.allocate(*specs, is_misaligned); !done) return pass_on(done.error());
  const auto launch = call.resolve(*data, buffers.addresses, &outcome->log);
  if (!launch) return pass_on(launch.error());
  if (!*launch) return false;
  if (auto done = buffers.prepare(*data); !done) return pass_on(done.error());
  if (auto done = gpu_->launch(kernel_, **launch); !done) return pass_on(done.error());
  if (auto done = gpu_->synchronize(); !done) return pass_on(done.error());
  outcome->status = kPassed;
  const auto overrun = buffers.find_overrun();
  if (!overrun) return pass_on(overrun.error());
  if (!overrun->empty()) find_wrong(*overrun + run_words(run), outcome);
  const auto changed = buffers.find_changed_input(*data, *specs);
  if (!changed) return pass_on(changed.error());
  if (!changed->empty()) find_wrong(*changed + run_words(run), outcome);
  CaseOutcome compared;
  compared.status = kPassed;
  if (auto done = compare(*data, *specs, &buffers, &compared); !done) return pass_on(done.error());
  if (!compared.log.empty()) compared.log += run_words(run);
  merge(compared, outcome);
  outcome->bytes = 0;
  for (const Buffers::Item& item : buffers.items) {
    outcome->bytes += static_cast<int64_t>(item.bytes);
    for (const BufferSpec& spec : *specs) {
      // Read and written.
      if (spec.shares == item.spec->name) outcome->bytes += static_cast<int64_t>(item.bytes);
    }
  }
  if (outcome->status == kPassed && run == 0 && !is_misaligned) {
    if (auto done = measure(**launch, &buffers, outcome); !done) return pass_on(done.error());
  }
  return true;
}

Result<void> Trial::compare(const CaseData& data, const std::vector<BufferSpec>& specs,
                            Buffers* buffers, CaseOutcome* outcome) {
  // What there is a reference for: the definition's outputs, and buffers that the operation knows.
  std::vector<OutputSpec> outputs;
  for (const BufferSpec& spec : specs) {
    if (!spec.is_output) continue;
    const DefinitionArgument* const argument = subject_.definition->find_argument(spec.name);
    const bool is_defined = argument != nullptr;
    const bool is_known = !python_ && find_extra_output(subject_.op, spec.name) != nullptr;
    if (is_defined || is_known) outputs.push_back({spec.name, spec.type, spec.shape});
  }
  std::map<std::string, Tensor> told;
  RowReference reference;
  if (python_) {
    auto computed = python_->run(data);
    if (!computed) return pass_on(computed.error());
    told = std::move(*computed);
    for (const OutputSpec& output : outputs) {
      const Tensor& tensor = told.at(output.name);
      if (tensor.shape != output.shape) {
        return fail(ErrorCode::invalid_value, "the reference's \"" + output.name +
                                                  "\" has another shape than the definition");
      }
    }
    reference = [&](int64_t row, double* const* out) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        const Tensor& tensor = told.at(outputs[i].name);
        const int64_t width = tensor.width();
        for (int64_t j = 0; j < width; ++j) out[i][j] = tensor.at(row * width + j);
      }
    };
  } else {
    auto made = make_reference({subject_.op, *subject_.definition, data, outputs});
    if (!made) return pass_on(made.error());
    reference = std::move(*made);
  }

  std::vector<std::vector<uint8_t>> found;
  std::vector<int64_t> widths;
  std::vector<Tolerance> tolerances;
  int64_t rows = 0, widest = 0;
  for (const OutputSpec& output : outputs) {
    int64_t width = 1;
    for (size_t i = 1; i < output.shape.size(); ++i) width *= output.shape[i];
    widths.push_back(width);
    const int64_t output_rows = output.shape.empty() ? 1 : output.shape[0];
    if (rows != 0 && rows != output_rows) {
      return fail(ErrorCode::invalid_value, "the outputs do not share their first axis");
    }
    rows = output_rows;
    widest = std::max(widest, width);
    found.emplace_back(static_cast<size_t>(rows * width) * output.type->bytes);
    if (auto done = gpu_->to_host(found.back().data(), buffers->addresses.at(output.name),
                                  found.back().size());
        !done) {
      return done;
    }
    Tolerance tolerance = default_tolerance(*output.type);
    const VerifyBlock& verify = *subject_.verify;
    if (const auto limit = options_.atol ? options_.atol : verify.atol) tolerance.atol = *limit;
    if (const auto limit = options_.rtol ? options_.rtol : verify.rtol) tolerance.rtol = *limit;
    if (const auto ratio = options_.required_matched_ratio ? options_.required_matched_ratio
                                                           : verify.required_matched_ratio) {
      tolerance.required_matched_ratio = *ratio;
    }
    // Where single values may be far off, so may the direction: what the ratio allows.
    tolerance.min_cosine *= output.type->is_floating ? tolerance.required_matched_ratio : 0;
    tolerances.push_back(tolerance);
  }
  const std::vector<int64_t> chosen = choose_rows(rows, widest);
  std::vector<Comparison> comparisons(outputs.size());
  std::mutex lock;
  for_each_row(reference, outputs, chosen, [&](size_t index, double* const* expected) {
    const int64_t row = chosen[index];
    std::vector<double> values(static_cast<size_t>(widest));
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ElementType& type = *outputs[i].type;
      const uint8_t* at = found[i].data() + static_cast<size_t>(row * widths[i]) * type.bytes;
      for (int64_t j = 0; j < widths[i]; ++j, at += type.bytes) {
        values[static_cast<size_t>(j)] = type.load(at);
      }
      Comparison one;
      one.add(values.data(), expected[i], widths[i], row * widths[i], tolerances[i]);
      const std::lock_guard guard(lock);
      comparisons[i].merge(one);
    }
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Comparison& comparison = comparisons[i];
    outcome->max_absolute_error =
        std::max(outcome->max_absolute_error, comparison.max_absolute_error);
    outcome->max_relative_error =
        std::max(outcome->max_relative_error, comparison.max_relative_error);
    outcome->matched_ratio = std::min(outcome->matched_ratio, comparison.matched_ratio());
    const std::string fault = comparison.fault(tolerances[i]);
    if (!fault.empty()) find_wrong(fmt::format("\"{}\": {}", outputs[i].name, fault), outcome);
  }
  return {};
}

Result<bool> Trial::sample(const Call& call, const Workload& workload, const AxisValues& axes,
                           CaseOutcome* outcome) {
  const Definition& definition = *subject_.definition;
  const DefinitionArgument* const probs = definition.find_argument("probs");
  const auto samples =
      std::find_if(definition.arguments.begin(), definition.arguments.end(),
                   [](const DefinitionArgument& argument) { return argument.is_output; });
  if (probs == nullptr || probs->shape.size() != 2 || samples == definition.arguments.end()) {
    return fail(ErrorCode::invalid_value,
                "a sampling definition has an input \"probs\" of two axes and an output");
  }
  const DefinitionAxis* const batch = definition.find_axis(probs->shape[0]);
  outcome->status = kPassed;
  // One launch: false when `where` keeps it out.
  const auto draw = [&](const CaseData& data, Buffers* buffers, const Launch& launch,
                        std::vector<int64_t>* drawn) -> Result<void> {
    if (auto done = buffers->prepare(data); !done) return done;
    if (auto done = gpu_->launch(kernel_, launch); !done) return done;
    if (auto done = gpu_->synchronize(); !done) return done;
    Tensor tensor{element_type_of(samples->dtype), shape_of(samples->shape, data.axes), {}};
    tensor.allocate();
    if (auto done = gpu_->to_host(tensor.bytes.data(), buffers->addresses.at(samples->name),
                                  tensor.bytes.size());
        !done) {
      return done;
    }
    drawn->resize(static_cast<size_t>(tensor.count()));
    for (int64_t i = 0; i < tensor.count(); ++i) {
      (*drawn)[static_cast<size_t>(i)] = static_cast<int64_t>(tensor.at(i));
    }
    const auto overrun = buffers->find_overrun();
    if (!overrun) return pass_on(overrun.error());
    if (!overrun->empty()) find_wrong(*overrun, outcome);
    return {};
  };
  // Random numbers that come as a tensor are drawn anew for each launch.
  const auto renew = [&](CaseData* data, int run) -> Result<void> {
    for (const DefinitionArgument& argument : definition.arguments) {
      if (argument.name.find("uniform") != std::string::npos) data->tensors.erase(argument.name);
    }
    for (const char* const name : {"seed", "philox_seed", "offset", "philox_offset"}) {
      const auto value = usual_value(name, subject_, data->axes, run);
      if (data->scalars.count(name) != 0 && value) data->scalars[name] = *value;
    }
    return make_inputs({definition, subject_.op, data->axes, run, {}}, data);
  };

  const auto specs = call.buffers(axes);
  if (!specs) return pass_on(specs.error());
  std::vector<int64_t> drawn;
  std::optional<CaseData> data;
  std::vector<SampleLaw> laws;
  for (int run = 0; run < kMaskRuns && outcome->status == kPassed; ++run) {
    if (run % (kMaskRuns / kInputProfiles + 1) == 0) {
      auto made = make_data(call, workload, axes, run);
      if (!made) return pass_on(made.error());
      data = std::move(*made);
      laws.clear();
      for (int64_t row = 0; row < data->tensors.at("probs").rows(); ++row) {
        laws.push_back(sample_law(subject_.op, *data, row));
      }
    } else if (auto renewed = renew(&*data, run); !renewed) {
      return pass_on(renewed.error());
    }
    Buffers buffers(gpu_);
    if (auto done = buffers.allocate(*specs, false); !done) return pass_on(done.error());
    const auto launch = call.resolve(*data, buffers.addresses, &outcome->log);
    if (!launch) return pass_on(launch.error());
    if (!*launch) {
      outcome->status = kSkipped;
      return false;
    }
    if (auto done = draw(*data, &buffers, **launch, &drawn); !done) return pass_on(done.error());
    for (size_t row = 0; row < drawn.size() && outcome->status == kPassed; ++row) {
      const SampleLaw& law = laws[row];
      const int64_t token = drawn[row];
      if (token >= 0 && token < static_cast<int64_t>(law.is_allowed.size()) &&
          law.is_allowed[static_cast<size_t>(token)]) {
        continue;
      }
      find_wrong(
          fmt::format("row {} draws {}, which is not to be drawn{}", row, token, run_words(run)),
          outcome);
      outcome->max_absolute_error = outcome->max_relative_error = 1;
      outcome->matched_ratio = 0;
    }
    if (run == 0 && outcome->status == kPassed) {
      outcome->bytes = 0;
      for (const Buffers::Item& item : buffers.items) {
        outcome->bytes += static_cast<int64_t>(item.bytes);
      }
      if (auto done = measure(**launch, &buffers, outcome); !done) return pass_on(done.error());
    }
  }
  if (outcome->status != kPassed || options_.is_bench) return true;

  // One row's law, drawn from often: many equal rows where the batch is a variable axis.
  AxisValues many = axes;
  const int64_t width = axes.at(probs->shape[1]);
  const ElementType* const type = element_type_of(probs->dtype);
  if (batch != nullptr && !batch->is_const) {
    many[batch->name] = std::clamp<int64_t>(
        kSampleBatchBytes / (width * static_cast<int64_t>(type->bytes)), 1, kMostSampleRows);
  }
  Workload equal = made_workload(definition, {});
  auto made = make_data(call, equal, many, 0);
  if (!made) return pass_on(made.error());
  for (auto& [name, tensor] : made->tensors) {
    const DefinitionArgument* const argument = definition.find_argument(name);
    const bool is_per_row = argument != nullptr && !argument->shape.empty() &&
                            argument->shape[0] == probs->shape[0] &&
                            name.find("uniform") == std::string::npos;
    if (!is_per_row) continue;
    const size_t row_bytes = static_cast<size_t>(tensor.width()) * tensor.type->bytes;
    for (int64_t row = 1; row < tensor.rows(); ++row) {
      memcpy(tensor.bytes.data() + static_cast<size_t>(row) * row_bytes, tensor.bytes.data(),
             row_bytes);
    }
  }
  const SampleLaw law = sample_law(subject_.op, *made, 0);
  const auto many_specs = call.buffers(many);
  if (!many_specs) return pass_on(many_specs.error());
  std::vector<int64_t> counts(static_cast<size_t>(width), 0);
  Buffers buffers(gpu_);
  if (auto done = buffers.allocate(*many_specs, false); !done) return pass_on(done.error());
  int64_t total = 0;
  for (int run = 0; total < kSamplesPerRow && outcome->status == kPassed; ++run) {
    if (auto renewed = renew(&*made, kMaskRuns + run); !renewed) return pass_on(renewed.error());
    const auto launch = call.resolve(*made, buffers.addresses, &outcome->log);
    if (!launch) return pass_on(launch.error());
    if (!*launch) break;
    if (auto done = draw(*made, &buffers, **launch, &drawn); !done) return pass_on(done.error());
    for (const int64_t token : drawn) {
      if (token >= 0 && token < width) ++counts[static_cast<size_t>(token)];
    }
    total += static_cast<int64_t>(drawn.size());
  }
  if (total > 0 && outcome->status == kPassed) {
    const double distance = total_variation_distance(counts, law.probabilities);
    outcome->max_absolute_error = outcome->max_relative_error = distance;
    if (distance > kMaxTotalVariation) {
      find_wrong(
          fmt::format("{} samples of a row are {:.3f} away from its law (total variation; at "
                      "most {})",
                      total, distance, kMaxTotalVariation),
          outcome);
    }
  }
  return true;
}

Result<void> Trial::measure(const Launch& launch, Buffers*, CaseOutcome* outcome) {
  const bool is_bench = options_.is_bench;
  const int warmups = is_bench ? options_.warmups : kVerifyWarmups;
  const int iterations = is_bench ? options_.iterations : kVerifyIterations;
  const int trials = is_bench ? options_.trials : 1;
  const size_t flush_bytes = kFlushFactor * gpu_->info().l2_bytes;
  const bool flushes = is_bench && options_.flushes_l2 && !options_.uses_graph && flush_bytes > 0;
  if (flushes && flush_ == 0) {
    const auto memory = gpu_->allocate(flush_bytes);
    if (!memory) return pass_on(memory.error());
    flush_ = *memory;
  }
  const auto flush = [&]() -> Result<void> {
    if (!flushes) return {};
    return gpu_->fill32(flush_, 0, flush_bytes / kWord);
  };
  CUgraphExec graph = nullptr;
  const bool uses_graph = is_bench && options_.uses_graph;
  if (uses_graph) {
    const auto captured = gpu_->capture(
        std::vector<std::pair<CUfunction, const Launch*>>(kGraphLaunches, {kernel_, &launch}));
    if (!captured) return pass_on(captured.error());
    graph = *captured;
  }
  const auto work = [&] {
    return uses_graph ? gpu_->launch_graph(graph) : gpu_->launch(kernel_, launch);
  };
  std::vector<double> all;
  for (int trial = 0; trial < trials; ++trial) {
    for (int i = 0; i < warmups; ++i) {
      if (auto done = work(); !done) return done;
    }
    auto times = gpu_->time(iterations, flush, work);
    if (!times) return pass_on(times.error());
    for (double& time : *times) time /= uses_graph ? kGraphLaunches : 1;
    outcome->trial_ms.push_back(quantile(*times, 0.5));
    all.insert(all.end(), times->begin(), times->end());
  }
  outcome->latency_ms = std::accumulate(outcome->trial_ms.begin(), outcome->trial_ms.end(), 0.0) /
                        static_cast<double>(outcome->trial_ms.size());
  outcome->lowest_ms = quantile(all, 0.1);
  outcome->highest_ms = quantile(all, 0.9);
  return {};
}

Result<double> measure_copy_bandwidth(Gpu* gpu) {
  constexpr int kCopies = 10;
  const size_t bytes = std::clamp<size_t>(8 * gpu->info().l2_bytes, size_t{64} << 20,
                                          std::max<size_t>(gpu->info().free_bytes / 4, 1 << 20));
  const auto from = gpu->allocate(bytes);
  if (!from) return pass_on(from.error());
  const auto to = gpu->allocate(bytes);
  if (!to) return pass_on(to.error());
  const auto nothing = []() -> Result<void> { return {}; };
  const auto copy = [&] { return gpu->copy(*to, *from, bytes); };
  for (int i = 0; i < 2; ++i) {
    if (auto done = copy(); !done) return pass_on(done.error());
  }
  auto times = gpu->time(kCopies, nothing, copy);
  if (!times) return pass_on(times.error());
  (void)gpu->release(*from);
  (void)gpu->release(*to);
  const double seconds = quantile(*times, 0.5) / 1e3;
  return seconds > 0 ? 2 * static_cast<double>(bytes) / seconds : 0.0;
}

void merge(const CaseOutcome& other, CaseOutcome* outcome) {
  static constexpr const char* kOrder[] = {kSkipped, kPassed, kIncorrect, kTimeout, kRuntimeError};
  const auto severity = [](const std::string& status) {
    return std::find(std::begin(kOrder), std::end(kOrder), status) - std::begin(kOrder);
  };
  if (outcome->status.empty() || severity(other.status) > severity(outcome->status)) {
    outcome->status = other.status;
    outcome->log = other.log;
  }
  outcome->max_absolute_error = std::max(outcome->max_absolute_error, other.max_absolute_error);
  outcome->max_relative_error = std::max(outcome->max_relative_error, other.max_relative_error);
  outcome->matched_ratio = std::min(outcome->matched_ratio, other.matched_ratio);
  outcome->bytes = std::max(outcome->bytes, other.bytes);
  // The slowest way of being called is the one to answer for.
  if (other.latency_ms <= outcome->latency_ms) return;
  outcome->latency_ms = other.latency_ms;
  outcome->trial_ms = other.trial_ms;
  outcome->lowest_ms = other.lowest_ms;
  outcome->highest_ms = other.highest_ms;
}

}  // namespace fibshim::judge
