#include "tools/judge/trial.h"

#include "tools/base/terminal.h"
#include "tools/judge/inputs.h"
#include "tools/judge/launch_times.h"
#include "tools/judge/sampling.h"
#include "tools/judge/stated_values.h"
#include "tools/judge/workloads.h"

namespace fibshim::judge {
namespace {

// Cases of at most so many bytes have kUsualRuns runs, if no other number is told; larger ones one,
// each of them with the inputs of another run, so that all cases together see all of their kinds.
constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int kUsualRuns = kInputProfiles;
constexpr int64_t kSampleBatchBytes = int64_t{64} << 20;
constexpr int64_t kMostSampleRows = 5000;

std::string run_words(int run) { return run == 0 ? "" : fmt::format(" (run {})", run + 1); }

}  // namespace

Result<std::unique_ptr<Trial>> Trial::make(Gpu* gpu, const Folder& folder, uint32_t solution_index,
                                           const TrialOptions& options) {
  std::unique_ptr<Trial> trial(new Trial(gpu, folder, options));
  const SolutionSpec& solution = folder.model.solutions[solution_index];
  const Definition* const definition = folder.model.definition_of(solution);
  if (definition == nullptr) return fail(ErrorCode::not_found, "it has no definition");
  const VerifyBlock& verify = folder.verify_blocks.of(solution);
  trial->subject_ = {definition, &solution, &verify, find_op(*definition, verify.op)};
  if (!verify.op.empty() && trial->subject_.op.empty()) {
    return fail(ErrorCode::invalid_value,
                "\"verify\" names the operation \"" + verify.op + "\", which is not known");
  }
  if (solution.error_code != ErrorCode::success) {
    return fail(ErrorCode::invalid_image, solution.error_message);
  }

  const Snapshot& snapshot = *folder.report.snapshot;
  const Solution& built = snapshot.begin(snapshot.solutions)[solution_index];
  const auto rank = [&](uint32_t image) {
    return image_rank(snapshot.begin(built.images)[image], static_cast<uint32_t>(gpu->info().sm));
  };
  uint32_t best = 0;
  for (uint32_t i = 1; i < built.images.count; ++i) best = rank(i) > rank(best) ? i : best;
  if (built.images.count == 0 || rank(best) == 0) {
    return fail(ErrorCode::no_binary_for_gpu, fmt::format("no image for sm_{}", gpu->info().sm));
  }
  const LoaderApi* const loader = fibloader_api(kLoaderApiVersion);
  ImageBytes bytes{};
  char message[512] = "";
  const int read =
      loader->read_image(&snapshot, solution_index, best, &bytes, message, sizeof message);
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
  trial->kernel_ = FIBSHIM_TRY(kernel);

  for (Variant& variant : find_variants(folder.model, solution_index, options.ignores_when)) {
    // Each pattern has an original of its own.
    if (!options.originals.empty()) {
      for (const Variant& twin : std::exchange(variant.twins, {})) {
        trial->calls_.emplace_back(twin, Call(trial->subject_, twin, snapshot, folder.recorded));
      }
    }
    trial->calls_.emplace_back(variant, Call(trial->subject_, variant, snapshot, folder.recorded));
  }
  const bool wants_python = options.interpreter != nullptr && !is_sampling_op(trial->subject_.op);
  if (wants_python && !definition->reference.empty()) {
    trial->python_ = FIBSHIM_TRY(PythonReference::make(options.interpreter, *definition));
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
    if (workload.original != nullptr && workload.original->pattern != variant.name) continue;
    CaseOutcome one;
    one.log = find_contradiction(*variant.pattern, workload.scalars);
    one.status = kSkipped;
    const auto done = one.log.empty() ? judge_call(call, workload, axes, &one) : Result<void>();
    if (!done) {
      one.status = kRuntimeError;
      one.log = done.error().message;
      one.is_gpu_lost = true;
    }
    if (one.status == kPassed && workload.outputs != nullptr && !has_reference()) {
      one.log = "held to the outputs that were recorded with the inputs";
    } else if (one.status == kPassed && workload.original == nullptr && !has_reference()) {
      one.status = kNotJudged;
      one.log =
          "it runs, but nothing says what it must compute: no native reference is known by the "
          "definition's name or op_type; give --python, --against-original, or a \"verify\": "
          "{\"op\": ...}";
    }
    if (one.status == kPassed && workload.original != nullptr) {
      const RecordedLaunch& launch = workload.original->launch;
      one.log = fmt::format("held to the original, {}, launched with {}", launch.kernel->symbol,
                            geometry_words(launch.geometry));
    }
    if (const std::string origin = call.recorded_values(); !origin.empty()) {
      one.log += (one.log.empty() ? "" : "; ") + origin;
    }
    if (!one.log.empty() && calls_.size() > 1) {
      one.log = fmt::format("called as by {}: {}", variant.words(), one.log);
    }
    merge(one, &outcome);
    if (!done) break;
  }
  return outcome;
}

Result<void> Trial::judge_call(const Call& call, const Workload& workload, const AxisValues& axes,
                               CaseOutcome* outcome) {
  outcome->status = kSkipped;
  if (is_sampling_op(subject_.op) && workload.original == nullptr) {
    return sample(call, workload, axes, outcome);
  }
  int first = 0, runs = options_.is_bench ? 1 : options_.runs > 0 ? options_.runs : kUsualRuns;
  const bool is_told = options_.is_bench || options_.runs > 0 || options_.measures_distances;
  if (!is_told && bytes_of(*subject_.definition, axes) > kLargeBytes) {
    first = large_cases_ % kUsualRuns;
    runs = 1;
  }
  for (int run = first; run < first + runs; ++run) {
    const bool has_run = FIBSHIM_TRY(run_once(call, workload, axes, run, false, outcome));
    if (!has_run || outcome->status != kPassed) return {};
  }
  large_cases_ += runs == 1 ? 1 : 0;
  // What the original asks of its buffers, nobody knows.
  if (options_.is_bench || workload.original != nullptr) return {};
  // Buffers that begin in the middle of a vector: either a `where` keeps them out, or the kernel
  // copes.
  constexpr char kWords[] =
      "with buffers aligned to one element only, which its \"where\" admits: ";
  const CaseOutcome aligned = *outcome;
  const auto ran = run_once(call, workload, axes, 0, true, outcome);
  if (!ran) return fail(ran.error().code, kWords + ran.error().message);
  if (outcome->status != kPassed && *ran) {
    outcome->log = kWords + outcome->log;
  } else {
    *outcome = aligned;
  }
  return {};
}

Result<CaseData> Trial::make_data(const Call& call, const Workload& workload,
                                  const AxisValues& axes, int run, bool wants_tensors) const {
  CaseData data;
  data.axes = axes;
  const Definition& definition = *subject_.definition;
  FIBSHIM_TRY(load_inputs(workload, definition, axes, options_.data_root, &data));
  const auto range_of = [&](std::string_view name) -> Result<IntegerRange> {
    if (const auto only = call.only_value(name)) return IntegerRange{*only, *only + 1};
    const VerifyArgument* const told = subject_.verify->find_argument(name);
    if (told == nullptr || told->kind != VerifyArgument::Kind::range) return IntegerRange{0, 0};
    return IntegerRange{FIBSHIM_TRY(evaluate(told->expression->expression, axes)),
                        FIBSHIM_TRY(evaluate(told->high->expression, axes))};
  };
  for (const auto& [name, value] : workload.scalars) data.scalars.emplace(name, value);
  if (workload.original != nullptr) data.scalars = workload.original->scalars;
  FIBSHIM_TRY(add_stated(subject_, &data));
  FIBSHIM_TRY(make_inputs({definition, subject_.op, axes, run, range_of, wants_tensors}, &data));
  add_numbers(call, run, &data);
  return data;
}

void Trial::add_numbers(const Call& call, int run, CaseData* data) const {
  const bool states_eps = data->scalars.count("eps") != 0;
  call.add_scalars(run, data);
  // A kernel that takes eps gets others, too; one that does not is held to the reference's own.
  constexpr double kEpsFactors[] = {1, 10, 1e4};
  if (find_eps(data->scalars) == nullptr) {
    data->scalars["eps"] = eps_of(*subject_.definition);
  } else if (call.takes("eps") && !states_eps && !python_ && !call.is_fixed("eps")) {
    data->scalars["eps"] *= kEpsFactors[run % 3];
  }
}

Result<bool> Trial::run_once(const Call& call, const Workload& workload, const AxisValues& axes,
                             int run, bool is_misaligned, CaseOutcome* outcome) {
  const OriginalCase* const original = workload.original.get();
  std::vector<BufferSpec> specs = FIBSHIM_TRY(call.buffers(axes, original != nullptr));
  const CaseData numbers = FIBSHIM_TRY(make_data(call, workload, axes, run, false));
  if (original == nullptr && !(outcome->log = call.lay_out(numbers, &specs)).empty()) {
    outcome->status = kNotJudged;
    return false;
  }
  DeviceBuffers buffers(gpu_, specs);
  FIBSHIM_TRY(buffers.allocate(is_misaligned));
  std::optional<Launch> launch, original_launch;
  CUfunction original_kernel = nullptr;
  if (original == nullptr) {
    launch = FIBSHIM_TRY(call.resolve(numbers, buffers.addresses(), &outcome->log));
    if (!launch) return false;
    if (python_ && !(outcome->log = python_->find_other_eps(numbers, *subject_.verify)).empty()) {
      outcome->status = kNotJudged;
      return false;
    }
  }
  const CaseData data = FIBSHIM_TRY(make_data(call, workload, axes, run));
  if (original != nullptr) {
    auto both = call.resolve_both(original->launch, data, buffers.addresses(), &outcome->log);
    if (!both) {
      outcome->status = kNotJudged;
      outcome->log = both.error().message;
      return false;
    }
    if (!*both) return false;
    launch = std::move((*both)->replacement);
    OriginalAnswer answer =
        FIBSHIM_TRY(originals_.ask(gpu_, *original, (*both)->original, data, specs, &buffers));
    if (!answer.why.empty()) {
      outcome->status = answer.is_no_launch ? kSkipped : kNotJudged;
      outcome->is_gpu_lost = answer.is_gpu_lost;
      outcome->log = std::move(answer.why);
      return false;
    }
    told_ = std::move(answer.outputs);
    original_launch = std::move((*both)->original);
    original_kernel = answer.kernel;
  }
  if (original == nullptr && !has_reference()) {
    told_ = FIBSHIM_TRY(load_outputs(workload, *subject_.definition, axes, options_.data_root));
  }
  FIBSHIM_TRY(buffers.prepare(data));
  FIBSHIM_TRY(gpu_->launch(kernel_, *launch));
  FIBSHIM_TRY(gpu_->synchronize());
  outcome->status = kPassed;
  const std::string overrun = FIBSHIM_TRY(buffers.find_overrun());
  if (!overrun.empty()) find_wrong(overrun + run_words(run), outcome);
  const std::string changed = FIBSHIM_TRY(buffers.find_changed_input(data));
  if (!changed.empty()) find_wrong(changed + run_words(run), outcome);
  CaseOutcome compared;
  compared.status = kPassed;
  FIBSHIM_TRY(compare(data, specs, &buffers, &compared));
  if (!compared.log.empty()) compared.log += run_words(run);
  merge(compared, outcome);
  if (options_.measures_distances && run == 0 && !is_misaligned && original == nullptr) {
    auto recorded =
        FIBSHIM_TRY(load_outputs(workload, *subject_.definition, axes, options_.data_root));
    FIBSHIM_TRY(measure_distances(data, std::move(recorded), &buffers, outcome));
  }
  outcome->bytes = buffers.moved_bytes();
  if (outcome->status == kPassed && outcome->trial_ms.empty() && !is_misaligned) {
    FIBSHIM_TRY(time_launches(gpu_, options_, kernel_, *launch, &flush_, outcome));
    if (original_launch && options_.is_bench) {
      CaseOutcome timed;
      FIBSHIM_TRY(
          time_launches(gpu_, options_, original_kernel, *original_launch, &flush_, &timed));
      outcome->original_ms = timed.latency_ms;
    }
  }
  return true;
}

Tolerance Trial::tolerance_of(const OutputSpec& output) const {
  Tolerance tolerance = default_tolerance(*output.type);
  const VerifyBlock& verify = *subject_.verify;
  const auto choose = [](double* value, const std::optional<double>& option,
                         const std::optional<double>& stated) {
    *value = option.value_or(stated.value_or(*value));
  };
  choose(&tolerance.atol, options_.atol, verify.atol);
  choose(&tolerance.rtol, options_.rtol, verify.rtol);
  choose(&tolerance.required_matched_ratio, options_.required_matched_ratio,
         verify.required_matched_ratio);
  // Where single values may be far off, so may the direction: what the ratio allows.
  tolerance.min_cosine *= output.type->is_floating ? tolerance.required_matched_ratio : 0;
  return tolerance;
}

Result<void> Trial::compare(const CaseData& data, const std::vector<BufferSpec>& specs,
                            DeviceBuffers* buffers, CaseOutcome* outcome) {
  // What there is a reference for: the definition's outputs, and buffers that the operation knows.
  if (told_.empty() && !has_reference()) return {};
  std::vector<OutputSpec> outputs;
  std::vector<Tensor> found;
  for (const BufferSpec& spec : specs) {
    const bool is_known = told_.count(spec.name) != 0 ||
                          subject_.definition->find_argument(spec.name) != nullptr ||
                          (!python_ && find_extra_output(subject_.op, spec.name) != nullptr);
    if (!spec.is_output || !is_known) continue;
    outputs.push_back({spec.name, spec.type, spec.shape});
    found.push_back(FIBSHIM_TRY(buffers->read(spec.name)));
  }
  const auto comparisons = compare_outputs(data, outputs, found, std::exchange(told_, {}));
  if (!comparisons && comparisons.error().code == ErrorCode::not_found) {
    outcome->status = kNotJudged;
    outcome->log = comparisons.error().message + "; give --python";
    return {};
  }
  FIBSHIM_TRY(comparisons);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Comparison& comparison = (*comparisons)[i];
    outcome->max_absolute_error =
        std::max(outcome->max_absolute_error, comparison.max_absolute_error);
    outcome->max_relative_error =
        std::max(outcome->max_relative_error, comparison.max_relative_error);
    outcome->matched_ratio = std::min(outcome->matched_ratio, comparison.matched_ratio());
    const std::string fault = comparison.fault(tolerance_of(outputs[i]));
    if (!fault.empty()) find_wrong(fmt::format("\"{}\": {}", outputs[i].name, fault), outcome);
  }
  return {};
}

Result<std::vector<Comparison>> Trial::compare_outputs(const CaseData& data,
                                                       const std::vector<OutputSpec>& outputs,
                                                       const std::vector<Tensor>& found,
                                                       std::map<std::string, Tensor> told) const {
  RowReference reference;
  if (told.empty() && python_) {
    told = FIBSHIM_TRY(python_->run(data));
    for (const OutputSpec& output : outputs) {
      if (told.at(output.name).shape == output.shape) continue;
      return fail(
          ErrorCode::invalid_value,
          fmt::format("the reference's \"{}\" has another shape than the definition", output.name));
    }
  } else if (told.empty()) {
    reference = FIBSHIM_TRY(make_reference({subject_.op, *subject_.definition, data, outputs}));
  }
  std::vector<Tolerance> tolerances;
  int64_t rows = 0, widest = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (reference && rows != 0 && rows != found[i].rows()) {
      return fail(ErrorCode::invalid_value, "the outputs do not share their first axis");
    }
    rows = found[i].rows();
    widest = std::max(widest, found[i].width());
    tolerances.push_back(tolerance_of(outputs[i]));
  }
  std::vector<Comparison> comparisons;
  if (reference) {
    comparisons = compare_rows(reference, outputs, choose_rows(rows, widest), found, tolerances);
  }
  for (size_t i = comparisons.size(); i < outputs.size(); ++i) {  // each is told as a whole
    const auto as_told = [&](int64_t row, double* const* out) {
      load_row(told.at(outputs[i].name), row, out[0]);
    };
    comparisons.push_back(compare_rows(as_told, {outputs[i]},
                                       choose_rows(found[i].rows(), found[i].width()), {found[i]},
                                       {tolerances[i]})[0]);
  }
  return comparisons;
}

Result<void> Trial::measure_distances(const CaseData& data, std::map<std::string, Tensor> recorded,
                                      DeviceBuffers* buffers, CaseOutcome* outcome) const {
  std::vector<OutputSpec> outputs;
  std::vector<Tensor> own, original;
  for (const auto& [name, tensor] : recorded) {
    if (!tensor.type->is_floating) continue;
    outputs.push_back({name, tensor.type, tensor.shape});
    own.push_back(FIBSHIM_TRY(buffers->read(name)));
    original.push_back(tensor);
  }
  if (outputs.empty()) return {};
  const auto largest = [](const std::vector<Comparison>& comparisons) {
    return std::ranges::max(comparisons, {}, &Comparison::largest_distance).largest_distance;
  };
  if (has_reference()) {
    outcome->original_distance = largest(FIBSHIM_TRY(compare_outputs(data, outputs, original, {})));
  }
  outcome->solution_distance =
      largest(FIBSHIM_TRY(compare_outputs(data, outputs, own, std::move(recorded))));
  return {};
}

// Random numbers that come as a tensor are drawn anew for each launch.
Result<void> Trial::renew_random_inputs(CaseData* data, int run) const {
  const Definition& definition = *subject_.definition;
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.name.find("uniform") != std::string::npos) data->tensors.erase(argument.name);
  }
  for (const char* const name : {"seed", "philox_seed", "offset", "philox_offset"}) {
    const auto value = usual_value(name, subject_, data->axes, run);
    if (data->scalars.count(name) != 0 && value) data->scalars[name] = *value;
  }
  return make_inputs({definition, subject_.op, data->axes, run, {}}, data);
}

// The samples of one launch.
Result<Tensor> Trial::draw(const CaseData& data, DeviceBuffers* buffers, const Launch& launch,
                           const DefinitionArgument& samples, CaseOutcome* outcome) {
  FIBSHIM_TRY(buffers->prepare(data));
  FIBSHIM_TRY(gpu_->launch(kernel_, launch));
  FIBSHIM_TRY(gpu_->synchronize());
  const std::string overrun = FIBSHIM_TRY(buffers->find_overrun());
  if (!overrun.empty()) find_wrong(overrun, outcome);
  return buffers->read(samples.name);
}

Result<void> Trial::sample(const Call& call, const Workload& workload, const AxisValues& axes,
                           CaseOutcome* outcome) {
  const DefinitionArgument* const probs = subject_.definition->find_argument("probs");
  const auto* const samples =
      tools::find_row(subject_.definition->arguments, &DefinitionArgument::is_output, true);
  if (probs == nullptr || probs->shape.size() != 2 || samples == nullptr) {
    return fail(ErrorCode::invalid_value,
                "a sampling definition has an input \"probs\" of two axes and an output");
  }
  outcome->status = kPassed;
  const std::vector<BufferSpec> specs = FIBSHIM_TRY(call.buffers(axes));
  CaseData data;
  std::vector<SampleLaw> laws;
  for (int run = 0; run < kMaskRuns && outcome->status == kPassed; ++run) {
    if (run % (kMaskRuns / kInputProfiles + 1) == 0) {
      data = FIBSHIM_TRY(make_data(call, workload, axes, run));
      laws.clear();
      for (int64_t row = 0; row < data.tensors.at("probs").rows(); ++row) {
        laws.push_back(sample_law(subject_.op, data, row));
      }
    } else {
      FIBSHIM_TRY(renew_random_inputs(&data, run));
    }
    DeviceBuffers buffers(gpu_, specs);
    FIBSHIM_TRY(buffers.allocate(false));
    const auto launch = FIBSHIM_TRY(call.resolve(data, buffers.addresses(), &outcome->log));
    if (!launch) {
      outcome->status = kSkipped;
      return {};
    }
    const Tensor drawn = FIBSHIM_TRY(draw(data, &buffers, *launch, *samples, outcome));
    for (int64_t row = 0; row < drawn.count() && outcome->status == kPassed; ++row) {
      const auto token = static_cast<int64_t>(drawn.at(row));
      if (laws[static_cast<size_t>(row)].allows(token)) continue;
      find_wrong(
          fmt::format("row {} draws {}, which has no probability{}", row, token, run_words(run)),
          outcome);
      outcome->max_absolute_error = outcome->max_relative_error = 1;
      outcome->matched_ratio = 0;
    }
    if (run == 0 && outcome->status == kPassed) {
      outcome->bytes = buffers.moved_bytes();
      FIBSHIM_TRY(time_launches(gpu_, options_, kernel_, *launch, &flush_, outcome));
    }
  }
  if (outcome->status != kPassed || options_.is_bench) return {};
  return sample_one_law(call, axes, *probs, *samples, outcome);
}

// One row's law, drawn from often: many equal rows where the batch is a variable axis.
Result<void> Trial::sample_one_law(const Call& call, const AxisValues& axes,
                                   const DefinitionArgument& probs,
                                   const DefinitionArgument& samples, CaseOutcome* outcome) {
  const Definition& definition = *subject_.definition;
  AxisValues many = axes;
  const int64_t width = axes.at(probs.shape[1]);
  const DefinitionAxis* const batch = definition.find_axis(probs.shape[0]);
  if (batch != nullptr && !batch->is_const) {
    const auto row_bytes = width * static_cast<int64_t>(element_type_of(probs.dtype)->bytes);
    many[batch->name] = std::clamp<int64_t>(kSampleBatchBytes / row_bytes, 1, kMostSampleRows);
  }
  CaseData data = FIBSHIM_TRY(make_data(call, made_workload(definition, {}), many, 0));
  for (auto& [name, tensor] : data.tensors) {
    const DefinitionArgument* const argument = definition.find_argument(name);
    const bool is_per_row = argument != nullptr && !argument->shape.empty() &&
                            argument->shape[0] == probs.shape[0] &&
                            name.find("uniform") == std::string::npos;
    if (!is_per_row) continue;
    const size_t row_bytes = static_cast<size_t>(tensor.width()) * tensor.type->bytes;
    for (int64_t row = 1; row < tensor.rows(); ++row) {
      memcpy(tensor.bytes.data() + static_cast<size_t>(row) * row_bytes, tensor.bytes.data(),
             row_bytes);
    }
  }
  const SampleLaw law = sample_law(subject_.op, data, 0);
  const std::vector<BufferSpec> specs = FIBSHIM_TRY(call.buffers(many));
  DeviceBuffers buffers(gpu_, specs);
  FIBSHIM_TRY(buffers.allocate(false));
  std::vector<int64_t> counts(static_cast<size_t>(width), 0);
  int64_t total = 0;
  for (int run = 0; total < kSamplesPerRow && outcome->status == kPassed; ++run) {
    FIBSHIM_TRY(renew_random_inputs(&data, kMaskRuns + run));
    const auto launch = FIBSHIM_TRY(call.resolve(data, buffers.addresses(), &outcome->log));
    if (!launch) break;
    const Tensor drawn = FIBSHIM_TRY(draw(data, &buffers, *launch, samples, outcome));
    for (int64_t i = 0; i < drawn.count(); ++i) {
      const auto token = static_cast<int64_t>(drawn.at(i));
      if (token >= 0 && token < width) ++counts[static_cast<size_t>(token)];
    }
    total += drawn.count();
  }
  if (total == 0 || outcome->status != kPassed) return {};
  const double distance = total_variation_distance(counts, law.probabilities);
  outcome->max_absolute_error = outcome->max_relative_error = distance;
  if (distance > kMaxTotalVariation) {
    find_wrong(fmt::format("{} samples of a row are {:.3f} away from its law (total variation; at "
                           "most {})",
                           total, distance, kMaxTotalVariation),
               outcome);
  }
  return {};
}

}  // namespace fibshim::judge
