#include "loader/check/check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/compile/bind.h"
#include "loader/read/file.h"
#include "loader/check/images.h"
#include "loader/check/names.h"
#include "loader/compile/model.h"
#include "loader/compile/read_pattern.h"
#include "loader/compile/snapshot_builder.h"

namespace fibshim {
namespace {

class FolderCheck {
 public:
  FolderCheck(const CheckOptions& options, CheckReport* report)
      : options_(options), report_(report), trust_(model_.listing, &diagnostics_) {}

  void run(const std::string& folder) {
    auto listing = list_folder(folder, options_.trust, &diagnostics_);
    if (!listing) return;
    model_.listing = std::move(*listing);
    XXH3_128bits_reset(&digest_);
    trust_.look_at_way();
    trust_.look_at("", model_.listing.root.stamp());
    for (const PathStamp& below : model_.listing.folders) {
      trust_.look_at(below.relative, below.stamp);
    }
    if (!is_within_limits() || !read_signature() || !read_folder_settings()) {
      trust_.finish();
      return;
    }
    read_all();
    index_solutions();
    check_solutions();
    report_missing();
    trust_.finish();
    if (diagnostics_.invalid_count() == 0) {
      bind_all();
      if (diagnostics_.invalid_count() == 0) report_unreachable();
    }
    if (options_.lint != nullptr && diagnostics_.invalid_count() == 0) {
      options_.lint->check_model(model_, &diagnostics_);
    }
    finish_digest();
    if (diagnostics_.invalid_count() == 0) {
      auto snapshot = build_snapshot(model_);
      if (snapshot) {
        report_->snapshot = std::move(*snapshot);
      } else {
        diagnostics_.add(Rule::limit, {model_.listing.given, 0, 0}, snapshot.error().message);
      }
    }
  }

  void fill_report() {
    diagnostics_.sort();
    report_->error_count = diagnostics_.error_count();
    report_->warning_count = diagnostics_.warning_count();
    report_->note_count = diagnostics_.note_count();
    report_->invalid_count = diagnostics_.invalid_count();
    report_->definition_count = static_cast<uint32_t>(model_.definitions.size());
    report_->solution_count = static_cast<uint32_t>(model_.solutions.size());
    report_->pattern_count = static_cast<uint32_t>(model_.patterns.size());
    for (const SolutionSpec& solution : model_.solutions) {
      if (solution.error_code != ErrorCode::success) ++report_->broken_solution_count;
    }
    for (const BindingSpec& binding : model_.bindings) {
      if (binding.state == BindingState::ready) ++report_->ready_binding_count;
      if (binding.state == BindingState::refused) ++report_->refused_binding_count;
    }
    report_->diagnostics = diagnostics_.take();
  }

  Diagnostics& diagnostics() { return diagnostics_; }
  FolderModel take_model() { return std::move(model_); }

 private:
  void digest_bytes(std::string_view bytes) {
    const uint64_t size = bytes.size();
    XXH3_128bits_update(&digest_, &size, sizeof size);
    XXH3_128bits_update(&digest_, bytes.data(), bytes.size());
  }

  void beyond_limit(const std::string& what) {
    diagnostics_.add(Rule::limit, {model_.listing.given, 0, 0}, what + " are accepted");
  }

  // Adds up sizes before anything is read. False: the folder holds too much.
  bool add_size(const std::string& relative) {
    const auto stamp = model_.listing.root.stamp_below(relative.c_str());
    if (stamp) total_bytes_ += stamp->size_bytes;
    if (total_bytes_ <= kMaxFolderBytes) return true;
    beyond_limit("files that are too large together; at most " + std::to_string(kMaxFolderBytes) +
                 " bytes");
    return false;
  }

  bool is_within_limits() {
    const FolderListing& listing = model_.listing;
    if (listing.patterns.size() > kMaxPatterns) {
      beyond_limit(std::to_string(listing.patterns.size()) + " patterns; at most " +
                   std::to_string(kMaxPatterns));
      return false;
    }
    for (const auto* files : {&listing.definitions, &listing.solutions, &listing.patterns}) {
      for (const std::string& relative : *files) {
        if (!add_size(relative)) return false;
      }
    }
    return true;
  }

  bool are_images_within_limits() {
    std::unordered_set<std::string_view> seen;
    for (const SolutionSpec& solution : model_.solutions) {
      for (const SolutionImage& image : solution.images) {
        if (seen.insert(image.relative).second && !add_size(image.relative)) return false;
      }
    }
    return true;
  }

  // True when the folder may be read.
  bool read_signature() {
    if (options_.required_key.empty()) return true;
    auto manifest =
        SignedManifest::open(model_.listing.root, options_.required_key, options_.trust);
    if (!manifest) {
      diagnostics_.add(Rule::signature, {model_.listing.given, 0, 0}, manifest.error().message);
      return false;
    }
    signed_ = std::move(*manifest);
    return true;
  }

  // False when a key is required and has not signed these bytes.
  bool take_entry(const std::string& relative, std::string_view bytes) {
    if (!signed_ && !options_.wants_entries) return true;
    const Sha256 hash = sha256(bytes);
    report_->manifest.entries.push_back({relative, bytes.size(), hash});
    if (!signed_) return true;
    const std::string why = signed_->difference(relative, bytes.size(), hash);
    if (why.empty()) return true;
    diagnostics_.add(Rule::signature, {model_.listing.shown(relative), 0, 0}, why);
    return false;
  }

  // Files that were signed and are no part of the folder any more.
  void report_missing() {
    if (!signed_) return;
    std::unordered_set<std::string_view> found;
    for (const ManifestEntry& entry : report_->manifest.entries) found.insert(entry.relative);
    for (const auto& [relative, entry] : signed_->entries()) {
      // Earlier versions signed an index, which is not read any more.
      if (relative == ".fibshim-index" || found.count(relative) != 0) continue;
      diagnostics_.add(Rule::signature, {model_.listing.shown(relative), 0, 0},
                       "signed, but gone, or named by nothing that is served");
    }
  }

  // Reads one JSON file and hands its root to `use`. The text lives only that long: whatever is
  // kept must have been copied, but for the file's name.
  template <class Use>
  void read_json(const std::string& relative, const Use& use) {
    if (diagnostics_.is_full()) return;
    model_.files.push_back(model_.listing.shown(relative));
    const std::string* const file = &model_.files.back();
    const auto content = model_.listing.root.read(relative, kMaxJsonBytes);
    if (!content) {
      diagnostics_.add(Rule::file_read, {*file, 0, 0}, content.error().message);
      return;
    }
    trust_.look_at(relative, content->stamp);
    const std::string& bytes = content->bytes;
    if (!take_entry(relative, bytes)) return;
    digest_bytes(relative);
    digest_bytes(bytes);
    if (is_lfs_pointer(bytes)) {
      diagnostics_.add(Rule::file_read, {*file, 0, 0}, kLfsPointer);
      return;
    }
    const auto document = JsonDocument::parse(bytes, file, &diagnostics_);
    if (document) use(document->root());
  }

  // False: the folder is of a format that nothing here knows.
  bool read_folder_settings() {
    bool is_known = true;
    if (!model_.listing.has_settings) return is_known;
    read_json(kSettingsFile, [&](JsonValue root) {
      is_known = is_known_format(root, &diagnostics_);
      if (is_known) model_.settings = read_settings(root, &diagnostics_);
    });
    return is_known;
  }

  void read_all() {
    size_t named_definitions = 0;
    for (const std::string& relative : model_.listing.definitions) {
      read_json(relative, [&](JsonValue root) {
        auto definition = read_definition(root, &diagnostics_);
        if (!definition) return;
        ++named_definitions;
        const auto [known, is_new] =
            definitions_.emplace(definition->name.name, model_.definitions.size());
        if (!is_new) {
          report_duplicate(Rule::duplicate_definition, definition->name,
                           "definition " + quoted(definition->name.name),
                           model_.definitions[known->second].name.mark);
          return;
        }
        model_.definitions.push_back(std::move(*definition));
      });
    }
    has_unread_definitions_ = named_definitions != model_.listing.definitions.size();
    for (const std::string& relative : model_.listing.solutions) {
      read_json(relative, [&](JsonValue root) {
        const uint32_t errors_before = diagnostics_.error_count();
        auto solution = read_solution(root, relative, &diagnostics_);
        if (!solution) return;
        if (options_.lint != nullptr) options_.lint->read_solution(root, *solution, &diagnostics_);
        solution->is_complete = diagnostics_.error_count() == errors_before;
        model_.solutions.push_back(std::move(*solution));
      });
    }
    const uint32_t errors_before_patterns = diagnostics_.error_count();
    for (const std::string& relative : model_.listing.patterns) {
      read_json(relative, [&](JsonValue root) {
        auto pattern = read_pattern(root, &diagnostics_);
        if (pattern == nullptr) return;
        const auto [known, is_new] = labels_.emplace(pattern->label, pattern->label_mark);
        if (!is_new) {
          report_duplicate(Rule::duplicate_label, {pattern->label, pattern->label_mark},
                           "pattern " + quoted(pattern->label), known->second);
          return;
        }
        patterns_.emplace_back(std::move(pattern), relative);
      });
    }
    has_faulty_patterns_ = diagnostics_.error_count() != errors_before_patterns;
    apply_definition_settings();
    // The order of trial.
    std::stable_sort(patterns_.begin(), patterns_.end(), [](const auto& a, const auto& b) {
      if (a.first->benefit != b.first->benefit) return a.first->benefit > b.first->benefit;
      return a.first->label < b.first->label;
    });
    for (auto& [pattern, file] : patterns_) {
      for (const PatternValue& value : pattern->values) {
        supplied_.emplace(value.name, &value);
      }
      model_.patterns.push_back(std::move(pattern));
      model_.pattern_files.push_back(file);
    }
  }

  void apply_definition_settings() {
    for (const DefinitionSetting& setting : model_.settings.of_definitions) {
      const bool is_known =
          setting.is_glob()
              ? std::any_of(definitions_.begin(), definitions_.end(),
                            [&](const auto& definition) { return setting.fits(definition.first); })
              : definitions_.count(setting.definition.name) != 0;
      if (!is_known) report_unknown_definition(setting.definition);
    }
    for (SolutionSpec& solution : model_.solutions) {
      const DefinitionSetting* const setting = model_.settings.find(solution.definition.name);
      if (setting != nullptr) solution.on_error = setting->on_error;
    }
  }

  void report_duplicate(Rule rule, const MarkedName& second, const std::string& what, Mark first) {
    diagnostics_.add(rule, second.mark,
                     what + " is already in " + *first.file + ":" + std::to_string(first.line));
  }

  void index_solutions() {
    for (uint32_t i = 0; i < model_.solutions.size(); ++i) {
      const SolutionSpec& solution = model_.solutions[i];
      const auto [known, is_new] = solution_by_definition_.emplace(solution.definition.name, i);
      if (is_new) continue;
      const SolutionSpec& first = model_.solutions[known->second];
      diagnostics_.add(Rule::duplicate_solution, solution.definition.mark,
                       "definition " + quoted(solution.definition.name) + " is already solved by " +
                           quoted(first.name.name) + " in " + *first.file + ":" +
                           std::to_string(first.definition.mark.line));
    }
  }

  const Definition* definition_of(const SolutionSpec& solution) const {
    const auto at = definitions_.find(solution.definition.name);
    return at == definitions_.end() ? nullptr : &model_.definitions[at->second];
  }

  void check_solutions() {
    if (!are_images_within_limits()) return;
    ImageStore store(model_.listing, signed_ ? &*signed_ : nullptr);
    for (SolutionSpec& solution : model_.solutions) {
      const Definition* const definition = definition_of(solution);
      if (definition == nullptr) report_unknown_definition(solution.definition);
      if (!solution.is_complete) continue;
      if (definition != nullptr) {
        check_names(solution, *definition, supplied_, has_faulty_patterns_, &diagnostics_);
      }
      check_images(&solution, definition, &store, &diagnostics_);
      for (const SolutionImage& image : solution.images) {
        const ImageFacts& facts = store.facts(image.relative, image.kind);
        digest_bytes(image.relative);
        XXH3_128bits_update(&digest_, facts.hash.data(), facts.hash.size());
        if (facts.read_error || !images_.insert(image.relative).second) continue;
        trust_.look_at(image.relative, facts.stamp);
        report_->manifest.entries.push_back({image.relative, facts.size_bytes, facts.hash});
      }
    }
  }

  void report_unknown_definition(const MarkedName& name) {
    if (has_unread_definitions_) return;  // it may be the one that could not be read
    std::vector<std::string_view> known;
    if (diagnostics_.has_suggestions_left()) {
      for (const Definition& definition : model_.definitions) known.push_back(definition.name.name);
    }
    diagnostics_.add(Rule::unknown_definition, name.mark,
                     "no file below definitions/ has the definition " + quoted(name.name),
                     diagnostics_.suggestion(name.name, known));
  }

  using SolutionsByName = std::vector<std::pair<std::string_view, uint32_t>>;  // sorted

  static SolutionsByName::const_iterator first_with_prefix(const SolutionsByName& by_name,
                                                           std::string_view prefix) {
    return std::lower_bound(by_name.begin(), by_name.end(),
                            std::pair<std::string_view, uint32_t>(prefix, 0));
  }

  // How often names will be compared, known before the first comparison.
  bool are_pairs_within_limits(const SolutionsByName& by_name) {
    uint64_t pairs = 0;
    for (const auto& pattern : model_.patterns) {
      const std::string_view prefix = pattern->name_prefix();
      const auto begin = first_with_prefix(by_name, prefix);
      const auto end = std::partition_point(begin, by_name.end(), [&](const auto& named) {
        return named.first.substr(0, prefix.size()) == prefix;
      });
      pairs += static_cast<uint64_t>(end - begin);
    }
    if (pairs <= kMaxComparedPairs) return true;
    beyond_limit(std::to_string(pairs) +
                 " pairs of a pattern and a solution whose name begins as the pattern's does; at "
                 "most " +
                 std::to_string(kMaxComparedPairs));
    return false;
  }

  void bind_all() {
    // Solutions by definition name: a template's literal beginning selects a range.
    SolutionsByName by_name;
    for (uint32_t i = 0; i < model_.solutions.size(); ++i) {
      by_name.emplace_back(model_.solutions[i].definition.name, i);
    }
    std::sort(by_name.begin(), by_name.end());
    is_reached_.assign(model_.solutions.size(), false);
    if (!are_pairs_within_limits(by_name)) return;
    std::vector<std::pair<uint32_t, uint32_t>> pairs;  // of a pattern and a solution
    for (uint32_t i = 0; i < model_.patterns.size(); ++i) {
      const PatternSpec& pattern = *model_.patterns[i];
      const std::string_view prefix = pattern.name_prefix();
      auto at = first_with_prefix(by_name, prefix);
      for (; at != by_name.end() && at->first.substr(0, prefix.size()) == prefix; ++at) {
        if (pattern.can_name(at->first, {})) pairs.emplace_back(i, at->second);
      }
    }
    if (pairs.size() > kMaxBindings) {
      beyond_limit(std::to_string(pairs.size()) + " pairs of a pattern and a solution; at most " +
                   std::to_string(kMaxBindings));
      return;
    }
    for (const auto& [pattern, solution] : pairs) {
      const SolutionSpec& spec = model_.solutions[solution];
      is_reached_[solution] = true;
      BindingSpec binding =
          bind(*model_.patterns[pattern], spec, *definition_of(spec), &diagnostics_);
      binding.pattern = pattern;
      binding.solution = solution;
      model_.bindings.push_back(std::move(binding));
    }
  }

  void report_unreachable() {
    for (size_t i = 0; i < model_.solutions.size(); ++i) {
      const SolutionSpec& solution = model_.solutions[i];
      if (is_reached_[i]) continue;
      diagnostics_.add(Rule::unreachable_solution, solution.definition.mark,
                       "no pattern leads to definition " + quoted(solution.definition.name));
    }
  }

  void finish_digest() {
    const XXH128_hash_t digest = XXH3_128bits_digest(&digest_);
    model_.digest[0] = digest.low64;
    model_.digest[1] = digest.high64;
  }

  const CheckOptions& options_;
  CheckReport* report_;
  Diagnostics diagnostics_;
  FolderModel model_;
  TrustCheck trust_;
  std::optional<SignedManifest> signed_;  // where a key is required
  XXH3_state_t digest_;
  std::unordered_map<std::string, size_t> definitions_;  // name -> index into the model's
  std::unordered_map<std::string, uint32_t> solution_by_definition_;
  std::unordered_map<std::string, Mark> labels_;
  std::vector<std::pair<std::unique_ptr<PatternSpec>, std::string>> patterns_;  // with their files
  std::unordered_set<std::string> images_;  // those that the manifest has
  SuppliedNames supplied_;
  std::vector<bool> is_reached_;
  uint64_t total_bytes_ = 0;
  // What could not be read must not make sound files look wrong.
  bool has_unread_definitions_ = false;
  bool has_faulty_patterns_ = false;
};

}  // namespace

CheckReport check_folder(const std::string& folder, const CheckOptions& options) noexcept {
  CheckReport report;
  try {
    // Large, and an engine's thread may have a small stack.
    const auto check = std::make_unique<FolderCheck>(options, &report);
    try {
      check->run(folder);
    } catch (const std::exception& error) {
      report.snapshot.reset();
      check->diagnostics().add(Rule::internal, {folder, 0, 0}, error.what());
    }
    check->fill_report();
    if (options.model != nullptr) *options.model = check->take_model();
  } catch (...) {
    // Not even the message fits into memory: the counts alone must say that nothing was loaded.
    report = CheckReport{};
    report.error_count = report.invalid_count = 1;
  }
  return report;
}

}  // namespace fibshim
