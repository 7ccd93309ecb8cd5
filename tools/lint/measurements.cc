#include "tools/lint/measurements.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "loader/check/choices.h"
#include "loader/read/code_hash.h"
#include "tools/lint/schema.h"

namespace fibshim {
namespace {

using Json = nlohmann::ordered_json;

// Measurement noise: smaller differences between two kernels on one GPU are not reported.
constexpr double kNoise = 0.03;

constexpr size_t kMostNames = 3;  // of solutions or sizes, in one message

MeasuredTime read_time(JsonValue value) {
  const auto number = [&](const char* key) {
    const JsonValue found = value.find(key);
    return found ? found.floating() : 0;
  };
  MeasuredTime out{{}, number("us"), number("p10_us"), number("p90_us"), number("original_us")};
  const JsonValue axes = value.find("axes");
  for (const JsonValue::Member& member : axes.members()) {
    out.axes.emplace(std::string(member.key), axes.value_of(member).integer());
  }
  return out;
}

// The schema has checked that all members are there and have the right types.
Measurement read_one(JsonValue value) {
  const auto text = [&](const char* key) { return std::string(value.find(key).string()); };
  Measurement out{text("definition"),
                  text("solution"),
                  text("images"),
                  text("gpu"),
                  value.find("sm").integer(),
                  text("driver"),
                  text("date"),
                  text("mode"),
                  text("original"),
                  {}};
  for (const JsonValue time : value.find("times").elements()) out.times.push_back(read_time(time));
  return out;
}

// A definition in which all axes have a value.
class FixedAxes : public Scope {
 public:
  FixedAxes(const Definition& definition, const std::map<std::string, int64_t>& axes)
      : definition_(definition), axes_(axes) {}
  std::optional<Meaning> find(std::string_view name) const override {
    const DefinitionAxis* const axis = definition_.find_axis(name);
    if (axis != nullptr && axis->is_const) return Meaning{Source::constant(axis->value)};
    const auto known = axes_.find(std::string(name));
    if (known == axes_.end()) return std::nullopt;
    return Meaning{Source::constant(known->second)};
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  const Definition& definition_;
  const std::map<std::string, int64_t>& axes_;
};

bool is_for(const SolutionSpec& solution, const Scope& axes) {
  return std::ranges::all_of(solution.when, [&](const MarkedExpression& clause) {
    const auto compiled = compile_value(clause.expression, axes);
    return compiled && compiled->constant.value_or(0) != 0;
  });
}

std::string axes_text(const std::map<std::string, int64_t>& axes) {
  std::string out;
  for (const auto& [name, value] : axes) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, value);
  }
  return out.empty() ? "every launch" : out;
}

// "a, b, c and 4 more".
std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMostNames);
  std::string out =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "));
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

// The measurements of a folder, none if it has no such file; nothing after reporting a fault.
std::optional<std::vector<Measurement>> read_measurements(const FolderListing& listing,
                                                          Diagnostics* diagnostics) {
  if (!listing.root.stamp_below(kMeasurementsFile)) return std::vector<Measurement>();
  const std::string file = listing.shown(kMeasurementsFile);
  const auto content = listing.root.read(kMeasurementsFile, kMaxJsonBytes);
  if (!content) {
    diagnostics->add(Rule::schema, {file, 0, 0}, content.error().message);
    return std::nullopt;
  }
  Diagnostics own;
  auto measured = parse_measurements(content->bytes, &file, &own);
  for (const Diagnostic& one : own.all()) {
    diagnostics->add(one.rule, one.place, one.message, one.hint);
  }
  if (own.error_count() > 0) return std::nullopt;
  return measured;
}

class Reporter {
 public:
  Reporter(const FolderModel& model, Diagnostics* diagnostics)
      : model_(model), diagnostics_(diagnostics) {}

  void run() {
    for (size_t i = 0; i < model_.folders.size(); ++i) {
      const auto measured = read_measurements(model_.folders[i], diagnostics_);
      if (!measured) continue;
      report_unmeasured(static_cast<uint16_t>(i), *measured);
      for (const SolutionSpec& solution : model_.solutions) {
        if (solution.folder == i) report_slower(solution, *measured);
      }
    }
  }

 private:
  std::vector<const Measurement*> of_solution(const SolutionSpec& solution,
                                              const std::vector<Measurement>& all) {
    std::vector<const Measurement*> out;
    for (const Measurement& one : all) {
      if (one.solution == solution.name.name && one.definition == solution.definition.name) {
        out.push_back(&one);
      }
    }
    if (out.empty()) return out;
    const std::string images = images_digest(model_, solution);
    std::erase_if(out, [&](const Measurement* one) { return one->images != images; });
    return out;
  }

  // The images that ran in these measurements: those for the GPU's major version, with the highest
  // minor that it runs.
  static std::set<uint32_t> measured_sms(const SolutionSpec& solution,
                                         const std::vector<const Measurement*>& measured) {
    std::set<uint32_t> out;
    for (const Measurement* const one : measured) {
      uint32_t best = 0;
      for (const SolutionImage& image : solution.images) {
        if (image.sm / 10 == one->sm / 10 && image.sm <= one->sm)
          best = std::max<uint32_t>(best, image.sm);
      }
      out.insert(best);
    }
    return out;
  }

  void report_unmeasured(uint16_t folder, const std::vector<Measurement>& all) {
    std::map<uint32_t, std::vector<std::string>> missing;  // by the images' architecture
    size_t count = 0;
    for (const SolutionSpec& solution : model_.solutions) {
      if (solution.folder != folder || solution.error_code != ErrorCode::success) continue;
      ++count;
      const auto measured = of_solution(solution, all);
      const std::set<uint32_t> known = measured_sms(solution, measured);
      std::set<uint32_t> wanted;
      for (const SolutionImage& image : solution.images) {
        // The driver decides where a fatbin or PTX runs: a measurement on any GPU is enough.
        if (image.kind == ImageKind::cubin) wanted.insert(image.sm);
      }
      if (wanted.empty() && measured.empty()) missing[0].push_back(solution.name.name);
      for (const uint32_t sm : wanted) {
        if (known.count(sm) == 0) missing[sm].push_back(solution.name.name);
      }
    }
    std::map<std::vector<std::string>, std::vector<std::string>> gpus_of;
    for (const auto& [sm, names] : missing) {
      gpus_of[names].push_back(sm == 0 ? "any GPU" : fmt::format("sm_{}", sm));
    }
    for (const auto& [names, gpus] : gpus_of) {
      const std::string whose = names.size() == count && count > 1
                                    ? fmt::format("none of the {} solutions is measured", count)
                                    : fmt::format("{} of {} solutions not measured: {}",
                                                  names.size(), count, some_of(names));
      diagnostics_->add(Rule::unmeasured, {model_.folders[folder].given, 0, 0},
                        fmt::format("on {}: {}", fmt::join(gpus, ", "), whose),
                        "fibshim bench --keep " + model_.folders[folder].given + " measures them");
    }
  }

  // The solution that serves these sizes; null if there is none.
  const SolutionSpec* chosen(const SolutionSpec& solution, const Scope& axes) const {
    const SolutionSpec* best = nullptr;
    for (const SolutionSpec& one : model_.solutions) {
      if (one.definition.name != solution.definition.name || !is_for(one, axes)) continue;
      if (best == nullptr || is_tried_before(one, *best)) best = &one;
    }
    return best;
  }

  void report_slower(const SolutionSpec& solution, const std::vector<Measurement>& all) {
    const Definition* const definition = model_.definition_of(solution);
    if (definition == nullptr) return;
    for (const Measurement* const one : of_solution(solution, all)) {
      std::vector<std::string> slower;
      for (const MeasuredTime& time : one->times) {
        const bool is_slower = time.original_us > 0 && time.us > time.original_us * (1 + kNoise) &&
                               chosen(solution, FixedAxes(*definition, time.axes)) == &solution;
        if (!is_slower) continue;
        slower.push_back(fmt::format("at {} {:.2f} us against {:.2f}", axes_text(time.axes),
                                     time.us, time.original_us));
      }
      if (slower.empty()) continue;
      diagnostics_->add(Rule::measured_slower,
                        solution.when.empty() ? solution.launch_mark : solution.when[0].text.mark,
                        fmt::format("slower than \"{}\" on {} ({}, {}): {}", one->original,
                                    one->gpu, one->mode, one->date, some_of(slower)),
                        "let \"when\" leave such sizes to the original");
    }
  }

  const FolderModel& model_;
  Diagnostics* diagnostics_;
};

}  // namespace

std::string images_digest(const FolderModel& model, const SolutionSpec& solution) {
  std::string all;
  for (const SolutionImage& image : solution.images) {
    const auto content = model.folders[solution.folder].root.read(image.relative, kMaxImageBytes);
    const auto code = content && image.kind == ImageKind::cubin
                          ? hash_kernel(content->bytes, solution.kernel.name)
                          : std::nullopt;
    all += code ? fmt::format("{:016x}{:016x}", code->high, code->low) : sha256_hex(image.hash);
  }
  return sha256_hex(sha256(all));
}

std::vector<Measurement> parse_measurements(std::string_view text, const std::string* file,
                                            Diagnostics* diagnostics) {
  Diagnostics syntax;
  const auto document = JsonDocument::parse(text, file, &syntax);
  for (const Diagnostic& one : syntax.all()) {
    diagnostics->add(Rule::schema, one.place, one.message, one.hint);
  }
  if (!document || syntax.error_count() > 0) return {};
  const auto faults = find_schema_faults(SchemaName::measurements, document->root());
  for (const SchemaFault& fault : faults)
    diagnostics->add(Rule::schema, fault.begin, fault.message);
  std::vector<Measurement> out;
  if (!faults.empty()) return out;
  for (const JsonValue one : document->root().find("measurements").elements()) {
    out.push_back(read_one(one));
  }
  return out;
}

// Writes one line for each time, so that diffs are readable.
std::string measurements_text(const std::vector<Measurement>& measurements) {
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string out = "{\n \"format\": 1,\n \"measurements\": [";
  for (const Measurement& one : measurements) {
    const Json head = {{"definition", one.definition},
                       {"solution", one.solution},
                       {"images", one.images},
                       {"gpu", one.gpu},
                       {"sm", one.sm},
                       {"driver", one.driver},
                       {"date", one.date},
                       {"mode", one.mode},
                       {"original", one.original}};
    std::string opening = text(head);
    opening.pop_back();
    out += (&one == measurements.data() ? "\n  " : ",\n  ") + opening + ",\"times\":[";
    for (const MeasuredTime& time : one.times) {
      Json line = {{"axes", time.axes}, {"us", time.us}};
      if (time.p90_us > 0) line.update({{"p10_us", time.p10_us}, {"p90_us", time.p90_us}});
      if (time.original_us > 0) line["original_us"] = time.original_us;
      out += (&time == one.times.data() ? "\n   " : ",\n   ") + text(line);
    }
    out += "]}";
  }
  return out + "\n ]\n}\n";
}

void merge_measurement(Measurement newer, std::vector<Measurement>* measurements) {
  const auto is_of_solution = [&](const Measurement& one) {
    return one.definition == newer.definition && one.solution == newer.solution;
  };
  const auto is_earlier = [&](const Measurement& one) {
    return is_of_solution(one) && one.gpu == newer.gpu && one.mode == newer.mode &&
           one.original == newer.original;
  };
  for (const Measurement& one : *measurements) {
    if (!is_earlier(one) || one.images != newer.images || one.driver != newer.driver) continue;
    for (const MeasuredTime& time : one.times) {
      const bool is_replaced = std::ranges::any_of(
          newer.times, [&](const MeasuredTime& other) { return other.axes == time.axes; });
      if (!is_replaced) newer.times.push_back(time);
    }
  }
  std::ranges::sort(newer.times, {}, &MeasuredTime::axes);
  std::erase_if(*measurements, [&](const Measurement& one) {
    return is_earlier(one) || (is_of_solution(one) && one.images != newer.images);
  });
  const auto key = [](const Measurement& one) {
    return std::tie(one.definition, one.solution, one.gpu, one.mode, one.original);
  };
  const auto at = std::ranges::find_if(
      *measurements, [&](const Measurement& one) { return key(newer) < key(one); });
  measurements->insert(at, std::move(newer));
}

void find_measurement_faults(const FolderModel& model, Diagnostics* diagnostics) {
  for (const FolderListing& listing : model.folders) read_measurements(listing, diagnostics);
}

void report_measurements(const FolderModel& model, Diagnostics* diagnostics) {
  Reporter(model, diagnostics).run();
}

}  // namespace fibshim
