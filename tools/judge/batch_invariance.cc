#include "tools/judge/batch_invariance.h"

#include <numeric>

#include <nlohmann/json.hpp>

#include "loader/check/choices.h"
#include "tools/base/terminal.h"
#include "tools/judge/gpu_lock.h"
#include "tools/judge/records.h"
#include "tools/judge/worker.h"

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;
using tools::kExitFine;
using tools::kExitWrong;
using tools::print_message;
using tools::printable;

constexpr char kInvariant[] = "INVARIANT";
constexpr char kNotInvariant[] = "NOT_INVARIANT";

constexpr int64_t kLargestBatch = 256;
// Powers of two and their neighbours, where tiles and blocks begin and end, and some sizes between.
const std::vector<int64_t> kBatches = {1,  2,   3,   4,   5,   7,   8,   9,  13, 15,
                                       16, 17,  24,  31,  32,  33,  48,  63, 64, 65,
                                       96, 100, 127, 128, 129, 200, 255, 256};
constexpr size_t kMostCombinations = 2;  // of the other variable axes

// The result for one solution.
struct Finding {
  std::string status;
  std::string log;
  std::set<int64_t> batches;  // the sizes that it serves

  void add(const std::string& worse, std::string why) {
    static constexpr const char* kOrder[] = {kSkipped,      kInvariant, kNotJudged,
                                             kNotInvariant, kTimeout,   kRuntimeError};
    const auto severity = [](const std::string& one) {
      return std::find(std::begin(kOrder), std::end(kOrder), one) - std::begin(kOrder);
    };
    if (!status.empty() && severity(worse) <= severity(status)) return;
    status = worse;
    log = std::move(why);
  }
};

// How the rows of a batch lie in a buffer: a row has `outer` pieces of `row_bytes`. If row_bytes is
// 0, the buffer has no rows and is the same for all batches.
struct Layout {
  const BufferSpec* spec = nullptr;
  size_t outer = 1, row_bytes = 0, bytes = 0;  // bytes: of all rows
  CUdeviceptr work = 0, pool = 0;              // pool: all rows, of an output their results
};

size_t bytes_of_shape(const std::vector<int64_t>& shape, size_t first, size_t last) {
  return std::accumulate(
      shape.begin() + static_cast<std::ptrdiff_t>(first),
      shape.begin() + static_cast<std::ptrdiff_t>(last), size_t{1},
      [](size_t product, int64_t extent) { return product * static_cast<size_t>(extent); });
}

// `grown`: the same buffer for a batch with one more row.
Layout layout_of(const BufferSpec& spec, const BufferSpec& grown) {
  Layout layout;
  layout.spec = &spec;
  layout.bytes = bytes_of_shape(spec.shape, 0, spec.shape.size()) * spec.type->bytes;
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] == grown.shape[i]) continue;
    layout.outer = bytes_of_shape(spec.shape, 0, i);
    layout.row_bytes = bytes_of_shape(spec.shape, i + 1, spec.shape.size()) * spec.type->bytes;
  }
  return layout;
}

// The results of all rows in the smallest batch, for one solution that is called in one way.
struct Rows {
  struct Output {
    size_t outer, row_bytes;
    std::vector<uint8_t> bytes;  // of all rows
  };
  std::string solution;
  int64_t count;
  std::map<std::string, Output> outputs;
  int64_t batch = 0;
};

bool is_same_row(size_t outer, size_t row_bytes, int64_t rows, int64_t row,
                 const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  for (size_t o = 0; o < outer; ++o) {
    const size_t at = (o * static_cast<size_t>(rows) + static_cast<size_t>(row)) * row_bytes;
    if (memcmp(a.data() + at, b.data() + at, row_bytes) != 0) return false;
  }
  return true;
}

// Runs one solution, called in one way, with one set of values for the other axes.
class RowRun {
 public:
  RowRun(Gpu* gpu, const Trial& trial, const Call& call, std::string axis, AxisValues axes,
         int64_t rows)
      : gpu_(gpu),
        trial_(trial),
        call_(call),
        axis_(std::move(axis)),
        axes_(std::move(axes)),
        row_count_(rows) {}
  ~RowRun() {
    for (const CUdeviceptr memory : memory_) (void)gpu_->release(memory);
  }
  RowRun(const RowRun&) = delete;
  RowRun& operator=(const RowRun&) = delete;

  Result<void> run(const std::vector<int64_t>& sizes, Rows* rows, Finding* finding) {
    FIBSHIM_TRY(prepare(finding));
    for (const int64_t size : sizes) {
      if (finding->status == kNotInvariant || finding->status == kNotJudged) return {};
      CaseData data;
      data.axes = with_batch(size);
      for (const DefinitionArgument& argument : trial_.subject().definition->arguments) {
        const auto known = pool_.scalars.find(argument.name);
        if (known != pool_.scalars.end()) data.scalars.insert(*known);
      }
      trial_.add_numbers(call_, 0, &data);
      std::vector<BufferSpec> laid_out = specs_;
      std::string reason = call_.lay_out(data, &laid_out);
      for (const BufferSpec& buffer : laid_out) {
        if (!buffer.strides.empty()) reason = "its rows do not lie one after another";
      }
      if (!reason.empty()) {
        finding->add(kSkipped, reason);
        continue;
      }
      const auto launch = FIBSHIM_TRY(call_.resolve(data, addresses_, &reason));
      if (!launch) {
        finding->add(kSkipped, reason);
        continue;
      }
      finding->add(kInvariant, "");
      finding->batches.insert(size);
      // Computes each row twice, at neighbouring places. Together the batches use every place.
      for (const int64_t begin : {0, 1}) {
        for (int64_t done = 0; done < row_count_; done += size) {
          FIBSHIM_TRY(compute(*launch, size, (begin + done) % row_count_,
                              std::min(size, row_count_ - done)));
        }
        FIBSHIM_TRY(compare(size, begin, rows, finding));
        if (size == 1) break;
      }
    }
    return {};
  }

 private:
  AxisValues with_batch(int64_t size) const {
    AxisValues axes = axes_;
    axes[axis_] = size;
    return axes;
  }

  Result<CUdeviceptr> allocate(size_t bytes) {
    memory_.push_back(FIBSHIM_TRY(gpu_->allocate(std::max<size_t>(bytes, 16))));
    return memory_.back();
  }

  // Allocates for the largest batch. All batches use the same addresses.
  Result<void> prepare(Finding* finding) {
    const Definition& definition = *trial_.subject().definition;
    const AxisValues axes = with_batch(row_count_);
    specs_ = FIBSHIM_TRY(call_.buffers(axes));
    const auto grown = FIBSHIM_TRY(call_.buffers(with_batch(row_count_ + 1)));
    pool_ = FIBSHIM_TRY(trial_.make_data(call_, made_workload(definition, axes), axes, 0));
    for (size_t i = 0; i < specs_.size(); ++i) {
      Layout layout = layout_of(specs_[i], grown[i]);
      if (specs_[i].is_output && definition.find_argument(specs_[i].name) != nullptr &&
          layout.row_bytes == 0) {
        finding->add(kNotJudged, fmt::format("the output \"{}\" has no row for each of \"{}\", the "
                                             "first variable axis",
                                             specs_[i].name, axis_));
        return {};
      }
      if (specs_[i].shares.empty()) {
        layout.work = FIBSHIM_TRY(allocate(layout.bytes));
        addresses_[specs_[i].name] = layout.work;
      }
      layouts_.push_back(layout);
    }
    for (Layout& layout : layouts_) {
      const BufferSpec& spec = *layout.spec;
      if (!spec.shares.empty()) {
        addresses_.emplace(spec.name, addresses_.at(spec.shares));
        layout.work = addresses_.at(spec.name);
      } else if (!spec.is_output) {
        const Tensor& tensor = pool_.tensors.at(spec.name);
        layout.pool = layout.row_bytes == 0 ? layout.work : FIBSHIM_TRY(allocate(layout.bytes));
        FIBSHIM_TRY(gpu_->to_device(layout.pool, tensor.bytes.data(), tensor.bytes.size()));
      } else {
        FIBSHIM_TRY(gpu_->fill8(layout.work, DeviceBuffers::kPoison, layout.bytes));
      }
      if (spec.is_output && layout.row_bytes != 0) {
        layout.pool = FIBSHIM_TRY(allocate(layout.bytes));
      }
    }
    return {};
  }

  // Copies rows between the first `count` places of a batch and the pool, there from row `first`
  // on. After the last row of the pool comes row 0.
  Result<void> move_rows(const Layout& layout, int64_t size, int64_t first, int64_t count,
                         bool is_to_pool) {
    const int64_t before_end = std::min(count, row_count_ - first);
    const auto copy = [&](CUdeviceptr batch, CUdeviceptr pool, int64_t rows) -> Result<void> {
      if (rows == 0) return {};
      return gpu_->copy(is_to_pool ? pool : batch, is_to_pool ? batch : pool,
                        static_cast<size_t>(rows) * layout.row_bytes);
    };
    for (size_t o = 0; o < layout.outer; ++o) {
      const CUdeviceptr batch = layout.work + o * static_cast<size_t>(size) * layout.row_bytes;
      const CUdeviceptr pool = layout.pool + o * static_cast<size_t>(row_count_) * layout.row_bytes;
      FIBSHIM_TRY(copy(batch, pool + static_cast<size_t>(first) * layout.row_bytes, before_end));
      FIBSHIM_TRY(copy(batch + static_cast<size_t>(before_end) * layout.row_bytes, pool,
                       count - before_end));
    }
    return {};
  }

  // Queues one launch of `size` rows from row `first` on. Keeps the first `count` results.
  Result<void> compute(const Launch& launch, int64_t size, int64_t first, int64_t count) {
    for (const Layout& layout : layouts_) {
      if (layout.row_bytes == 0 || !layout.spec->shares.empty()) continue;
      const size_t bytes = layout.outer * static_cast<size_t>(size) * layout.row_bytes;
      FIBSHIM_TRY(layout.spec->is_output ? gpu_->fill8(layout.work, DeviceBuffers::kPoison, bytes)
                                         : move_rows(layout, size, first, size, false));
    }
    FIBSHIM_TRY(gpu_->launch(trial_.kernel(), launch));
    for (const Layout& layout : layouts_) {
      if (!layout.spec->is_output || layout.row_bytes == 0) continue;
      FIBSHIM_TRY(move_rows(layout, size, first, count, true));
    }
    return {};
  }

  // Compares the results of all rows in batches of `size` with the known ones. The first batch
  // began with row `begin`.
  Result<void> compare(int64_t size, int64_t begin, Rows* rows, Finding* finding) {
    FIBSHIM_TRY(gpu_->synchronize());
    for (const Layout& layout : layouts_) {
      if (!layout.spec->is_output || layout.row_bytes == 0) continue;
      found_.resize(layout.bytes);
      FIBSHIM_TRY(gpu_->to_host(found_.data(), layout.pool, found_.size()));
      std::vector<uint8_t>& known = rows->outputs[layout.spec->name].bytes;
      if (known.empty()) {
        rows->outputs[layout.spec->name] = {layout.outer, layout.row_bytes, found_};
        rows->batch = size;
        continue;
      }
      if (known == found_) continue;
      for (int64_t place = 0; place < row_count_; ++place) {
        const int64_t row = (begin + place) % row_count_;
        if (is_same_row(layout.outer, layout.row_bytes, row_count_, row, known, found_)) continue;
        finding->add(kNotInvariant,
                     fmt::format("\"{}\": row {} has other bits at place {} of a batch of {} than "
                                 "in a batch of {}",
                                 layout.spec->name, row, place % size, size, rows->batch));
        return {};
      }
    }
    return {};
  }

  Gpu* gpu_;
  const Trial& trial_;
  const Call& call_;
  const std::string axis_;
  const AxisValues axes_;
  const int64_t row_count_;
  CaseData pool_;
  std::vector<BufferSpec> specs_;
  std::vector<Layout> layouts_;
  std::map<std::string, uint64_t> addresses_;
  std::vector<CUdeviceptr> memory_;
  std::vector<uint8_t> found_;
};

// One definition with its solutions, in the order in which the shim tries them.
struct Unit {
  const Definition* definition;
  std::vector<uint32_t> solutions;
  std::string axis;                // "": no axis varies
  std::vector<int64_t> sizes;      // rising
  std::vector<AxisValues> others;  // values of all other axes
};

Unit make_unit(const Folder& folder, const Definition& definition, std::vector<uint32_t> solutions,
               const JudgeOptions& options) {
  Unit unit{&definition, std::move(solutions), "", {}, {}};
  AxisValues constants;
  bool is_alone = true;
  for (const DefinitionAxis& axis : definition.axes) {
    if (axis.is_const) {
      constants[axis.name] = axis.value;
    } else if (unit.axis.empty()) {
      unit.axis = axis.name;
    } else {
      is_alone = false;
    }
  }
  if (unit.axis.empty()) return unit;

  JudgeOptions with_others = options;
  with_others.axes.erase(unit.axis);
  const SolutionSpec& first = folder.model.solutions[unit.solutions[0]];
  const VerifyBlock& verify = folder.verify_blocks.of(first);
  if (is_alone) unit.others.push_back(constants);
  for (const Workload& one :
       is_alone ? std::vector<Workload>()
                : make_cases({&definition, &first, &verify, find_op(definition, verify.op)},
                             with_others, {})) {
    AxisValues axes = one.axes;
    axes.erase(unit.axis);
    axes.insert(constants.begin(), constants.end());
    const bool is_known = std::ranges::find(unit.others, axes) != unit.others.end();
    if (!is_known && unit.others.size() < kMostCombinations) unit.others.push_back(axes);
  }

  const auto stated = options.axes.find(unit.axis);
  std::vector<int64_t> sizes = stated == options.axes.end() ? kBatches : stated->second;
  for (const uint32_t solution : unit.solutions) {
    if (stated == options.axes.end()) {
      add_bounds(folder.model.solutions[solution], unit.axis, &sizes);
    }
  }
  std::ranges::sort(sizes);
  for (const int64_t size : sizes) {
    if (size < 1 || (stated == options.axes.end() && size > kLargestBatch)) continue;
    if (unit.sizes.empty() || unit.sizes.back() != size) unit.sizes.push_back(size);
  }
  return unit;
}

// Judges the unit's solutions. Returns true if the GPU is lost.
bool find_out(Gpu* gpu, const Folder& folder, const Unit& unit, const JudgeOptions& options,
              std::vector<Finding>* findings) {
  std::map<std::string, std::vector<std::pair<size_t, Rows>>> known;  // by the way of calling
  for (size_t i = 0; i < unit.solutions.size(); ++i) {
    Finding& finding = (*findings)[i];
    const SolutionSpec& solution = folder.model.solutions[unit.solutions[i]];
    const auto trial = Trial::make(gpu, folder, unit.solutions[i], options.trial);
    if (!trial) {
      const bool is_other_gpu = trial.error().code == ErrorCode::no_binary_for_gpu;
      finding.add(is_other_gpu ? kSkipped : kRuntimeError, trial.error().message);
      continue;
    }
    if (unit.axis.empty() || is_sampling_op((*trial)->subject().op)) {
      finding.add(kNotJudged, unit.axis.empty() ? "the definition has no variable axis"
                                                : "its results are drawn at random");
      continue;
    }
    if ((*trial)->calls().empty()) finding.add(kSkipped, "no pattern uses it");
    for (const auto& [variant, call] : (*trial)->calls()) {
      for (const AxisValues& others : unit.others) {
        std::vector<int64_t> sizes;
        for (const int64_t size : unit.sizes) {
          AxisValues axes = others;
          axes[unit.axis] = size;
          if (meets_constraints(*unit.definition, axes)) sizes.push_back(size);
        }
        if (sizes.empty()) continue;
        Rows rows{solution.name.name, sizes.back(), {}};
        RowRun run(gpu, **trial, call, unit.axis, others, sizes.back());
        const auto done = run.run(sizes, &rows, &finding);
        if (!done) {
          finding.add(kRuntimeError, done.error().message);
          return true;
        }
        const std::string key = variant.name + "\n" + tools::pairs_words(others);
        if (finding.status == kInvariant && solution.batch_invariant != false) {
          known[key].emplace_back(i, std::move(rows));
        }
      }
    }
    if (finding.status.empty()) finding.add(kSkipped, "no batch meets the constraints");
  }
  // Each of these solutions is invariant by itself. Do they also agree with each other?
  for (auto& [key, all] : known) {
    for (size_t i = 1; i < all.size(); ++i) {
      auto& [other, rows] = all[i];
      auto& [first, first_rows] = all[0];
      for (const auto& [output, given] : rows.outputs) {
        const auto wanted = first_rows.outputs.find(output);
        if (wanted == first_rows.outputs.end() || first_rows.count != rows.count ||
            wanted->second.bytes == given.bytes) {
          continue;
        }
        int64_t row = 0;
        while (is_same_row(given.outer, given.row_bytes, rows.count, row, given.bytes,
                           wanted->second.bytes)) {
          ++row;
        }
        const std::string why = fmt::format(
            "\"{}\": row {} has other bits by \"{}\" in a batch of {} than by \"{}\" in one of {}",
            output, row, rows.solution, rows.batch, first_rows.solution, first_rows.batch);
        (*findings)[first].add(kNotInvariant, why);
        (*findings)[other].add(kNotInvariant, why);
      }
    }
  }
  return false;
}

Json claim_of(const SolutionSpec& solution) {
  return solution.batch_invariant ? Json(*solution.batch_invariant) : Json();
}

std::string batches_words(const std::set<int64_t>& batches) {
  return batches.empty()       ? "-"
         : batches.size() == 1 ? std::to_string(*batches.begin())
                               : fmt::format("{} to {}", *batches.begin(), *batches.rbegin());
}

class Report {
 public:
  void add(const Unit& unit, const SolutionSpec& solution, const Finding& finding) {
    const Json claim = claim_of(solution);
    const bool is_invariant = finding.status == kInvariant;
    const bool is_told = finding.status == kNotInvariant && claim == false;
    if (finding.status != kSkipped && finding.status != kNotJudged) {
      ++judged_;
      invariant_ += is_invariant;
      told_ += is_told;
    }
    records_.push_back({{"definition", unit.definition->name.name},
                        {"solution", solution.name.name},
                        {"claim", claim},
                        {"axis", unit.axis},
                        {"batches", finding.batches},
                        {"status", finding.status},
                        {"log", finding.log}});
    rows_.push_back({printable(unit.definition->name.name), printable(solution.name.name),
                     claim.is_null() ? "-"
                     : claim == true ? "yes"
                                     : "no",
                     batches_words(finding.batches), words_of(finding.status)});
    if (is_invariant || finding.status == kSkipped) {
      if (!is_invariant) skips_.insert(solution.name.name + ": " + finding.log);
      return;
    }
    faults_ += fmt::format("{}: {}{}\n", printable(solution.name.name),
                           claim == true && finding.status == kNotInvariant
                               ? "it claims to be batch-invariant, and is not: "
                               : "",
                           printable(finding.log));
  }

  int print(const JudgeOptions& options, const DeviceInfo& device, const char* command) const {
    if (!options.is_quiet) {
      for (const std::string& skip : skips_) print_message(command, printable(skip));
    }
    bool is_written = false;
    if (options.wants_json) {
      is_written = tools::print_json({{"version", 1},
                                      {"mode", "verify-batch-invariant"},
                                      {"device", device_to_json(device, options.trial.device)},
                                      {"records", records_}});
    } else {
      std::string verdict =
          fmt::format("{}: {} batch-invariant, {} not", tools::counted(judged_, "solution"),
                      invariant_, judged_ - invariant_);
      if (told_ > 0) verdict += fmt::format(" ({} claim not to be)", told_);
      is_written = tools::print_data(tools::format_table(rows_) +
                                     (faults_.empty() ? "" : "\n" + faults_) + verdict + "\n");
    }
    if (judged_ == 0) print_message(command, "nothing was judged");
    return is_written && judged_ > 0 && invariant_ + told_ == judged_ ? kExitFine : kExitWrong;
  }

 private:
  static std::string words_of(const std::string& status) {
    if (status == kInvariant) return "invariant";
    if (status == kNotInvariant) return "NOT INVARIANT";
    return status == kSkipped ? "left out" : status == kNotJudged ? "NOT JUDGED" : status;
  }

  std::vector<Json> records_;
  std::vector<std::vector<std::string>> rows_ = {
      {"DEFINITION", "SOLUTION", "CLAIMS", "BATCHES", "FOUND"}};
  std::string faults_;
  std::set<std::string> skips_;
  size_t judged_ = 0, invariant_ = 0, told_ = 0;
};

}  // namespace

int check_batch_invariance(const Folder& folder, const std::vector<uint32_t>& chosen,
                           const JudgeOptions& options, const DeviceInfo& device,
                           const char* command) {
  const auto& solutions = folder.model.solutions;
  std::map<std::string, std::vector<uint32_t>> by_definition;
  for (const uint32_t index : chosen) {
    by_definition[solutions[index].definition.name].push_back(index);
  }
  std::vector<Unit> units;
  for (auto& [name, all] : by_definition) {
    std::ranges::sort(
        all, [&](uint32_t a, uint32_t b) { return is_tried_before(solutions[a], solutions[b]); });
    units.push_back(
        make_unit(folder, *folder.model.definition_of(solutions[all[0]]), all, options));
  }
  const bool shows_progress = !options.is_quiet && isatty(STDERR_FILENO) != 0;
  const GpuLock lock(device.uuid, false, command);
  Report report;
  // One process judges all units. If a kernel ends it, another process judges the rest.
  for (size_t next = 0; next < units.size();) {
    size_t active = next;
    const size_t begin = next;
    const auto body = [&](const Tell& tell) {
      auto gpu = Gpu::open(options.trial.device);
      if (!gpu) return tell({{"fault", gpu.error().message}});
      for (size_t i = begin; i < units.size(); ++i) {
        tell({{"unit", i}});
        std::vector<Finding> findings(units[i].solutions.size());
        const bool is_lost = find_out(gpu->get(), folder, units[i], options, &findings);
        Json found = Json::array();
        for (const Finding& one : findings) found.push_back({one.status, one.log, one.batches});
        tell({{"unit", i}, {"found", found}});
        if (is_lost) return;
      }
    };
    std::string fault;
    const auto listen = [&](const Json& message) {
      if (message.contains("fault")) {
        fault = message["fault"].get<std::string>();
        return;
      }
      active = message["unit"].get<size_t>();
      const Unit& unit = units[active];
      if (!message.contains("found")) {
        if (shows_progress) {
          fmt::print(stderr, "\r\033[K[{}/{}] {}", active + 1, units.size(),
                     printable(unit.definition->name.name));
        }
        return;
      }
      for (size_t i = 0; i < unit.solutions.size(); ++i) {
        const Json& one = message["found"][i];
        Finding finding{one[0].get<std::string>(), one[1].get<std::string>(),
                        one[2].get<std::set<int64_t>>()};
        if (finding.status.empty()) finding.add(kRuntimeError, "not run: the GPU was lost");
        report.add(unit, solutions[unit.solutions[i]], finding);
      }
      next = active + 1;
    };
    const WorkerEnd end = run_worker(body, listen, options.timeout_s);
    if (!fault.empty()) {
      print_message(command, printable(fault));
      return kExitWrong;
    }
    if (next > active) continue;
    for (const uint32_t solution : units[active].solutions) {
      Finding finding;
      finding.add(end.is_timed_out ? kTimeout : kRuntimeError,
                  (end.is_fine ? "the worker ended early" : end.words) +
                      (end.output.empty() ? "" : ": " + end.output));
      report.add(units[active], solutions[solution], finding);
    }
    next = active + 1;
  }
  if (shows_progress) fmt::print(stderr, "\r\033[K");
  return report.print(options, device, command);
}

}  // namespace fibshim::judge
