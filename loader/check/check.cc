#include "loader/check/check.h"

#include <string.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>

#include "loader/read/file.h"
#include "loader/check/choices.h"
#include "loader/check/file_reader.h"
#include "loader/check/join.h"
#include "loader/check/names.h"
#include "loader/compile/model.h"
#include "loader/compile/snapshot_builder.h"
#include "shim/abi/folder_list.h"

namespace fibshim {
namespace {

class FolderCheck {
 public:
  FolderCheck(const CheckOptions& options, CheckReport* report)
      : options_(options),
        report_(report),
        reader_(options.wants_entries, &model_.files, &diagnostics_) {}

  void run(const std::string& list) {
    if (!list_folders(list)) return;
    bool is_readable = true;
    for (OneFolder& folder : folders_) {
      at_ = &folder;
      check_trust();
      is_readable = is_readable && is_within_limits() && read_signature() && read_folder_settings();
    }
    if (!is_readable) return finish_trust();
    read_all();
    const bool may_read_images = start_images();
    check_all_choices(model_, unused_solutions_, &diagnostics_);
    if (may_read_images) check_solutions();
    leave_out_variant_solutions();
    report_missing();
    finish_trust();
    for (OneFolder& folder : folders_) {
      report_->manifest.entries.insert(report_->manifest.entries.end(), folder.entries.begin(),
                                       folder.entries.end());
    }
    finish_digest();
    if (diagnostics_.invalid_count() != 0) return;
    const bool keeps_lists = options_.lint != nullptr || options_.model != nullptr;
    size_t released = 0;
    auto snapshot = build_snapshot(model_, [&](const auto& bound) {
      const auto use = [&](size_t count) {
        bound(count);
        // The last one may share lists with the next.
        for (; !keeps_lists && released + 1 < count; ++released) {
          model_.bindings[released].release_lists();
        }
      };
      const std::vector<bool> is_reached = join_all(&model_, shadows_, &diagnostics_, use);
      if (diagnostics_.invalid_count() != 0) return false;
      report_unreachable(is_reached);
      if (options_.lint != nullptr) options_.lint->check_model(model_, &diagnostics_);
      return diagnostics_.invalid_count() == 0;
    });
    if (snapshot) {
      report_->snapshot = std::move(*snapshot);
    } else {
      diagnostics_.add(Rule::limit, {model_.folders[0].given, 0, 0}, snapshot.error().message);
    }
  }

  void fill_report() {
    if (options_.lint != nullptr) options_.lint->finish(&diagnostics_);
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
    report_->diagnostics = diagnostics_.release();
  }

  Diagnostics& diagnostics() { return diagnostics_; }
  FolderModel release_model() { return std::move(model_); }

 private:
  // Returns false if a folder cannot be listed, or the shares do not fit together.
  bool list_folders(const std::string& list) {
    std::vector<std::string> given;
    const char* rest = list.c_str();
    size_t length = 0;
    while (const char* const begin = next_folder(&rest, &length)) given.emplace_back(begin, length);
    if (given.empty()) given.emplace_back();
    if (given.size() > kMaxFolders) {
      diagnostics_.add(Rule::folder, {list, 0, 0},
                       std::to_string(given.size()) + " folders; at most " +
                           std::to_string(kMaxFolders) + " are accepted");
      return false;
    }
    for (const std::string& folder : given) {
      size_t name_length = folder.size();
      const uint32_t share = strip_share(folder.c_str(), &name_length);
      auto listing = list_folder(folder.substr(0, name_length), options_.trust, &diagnostics_);
      if (!listing) continue;
      listing->share = share;
      model_.folders.push_back(std::move(*listing));
    }
    if (model_.folders.size() != given.size()) return false;
    shared_count_ = static_cast<size_t>(
        std::ranges::find(model_.folders, 0u, &FolderListing::share) - model_.folders.begin());
    for (size_t i = 0; i < given.size(); ++i) {
      if (model_.folders[i].share == (i < shared_count_ ? model_.folders[0].share : 0)) continue;
      diagnostics_.add(Rule::folder, {list, 0, 0},
                       "folders with a share of the launches come first, and all have the same");
      return false;
    }
    for (const FolderListing& listing : model_.folders) {
      folders_.emplace_back(listing, folders_.size(), &diagnostics_);
    }
    return true;
  }

  void check_trust() {
    at_->trust.check_way();
    at_->trust.check("", at_->listing.root.stamp());
    for (const PathStamp& below : at_->listing.folders) {
      at_->trust.check(below.relative, below.stamp);
    }
  }

  void finish_trust() {
    for (OneFolder& folder : folders_) folder.trust.finish();
  }

  void beyond_limit(const std::string& what) {
    const FolderListing& listing = at_ == nullptr ? model_.folders[0] : at_->listing;
    diagnostics_.add(Rule::limit, {listing.given, 0, 0}, what + " are accepted");
  }

  bool is_within_limits() {
    const FolderListing& listing = at_->listing;
    pattern_count_ += listing.patterns.size();
    if (pattern_count_ > kMaxPatterns) {
      beyond_limit(std::to_string(pattern_count_) + " patterns; at most " +
                   std::to_string(kMaxPatterns));
      return false;
    }
    return true;
  }

  // Begins to read the images ahead. Returns false after reporting it if they are too large.
  bool start_images() {
    for (OneFolder& folder : folders_) {
      folder.images.emplace(folder.listing, folder.manifest ? &*folder.manifest : nullptr);
    }
    if (!reader_.is_within_limit()) return false;
    std::set<std::pair<uint16_t, std::string_view>> seen;
    for (const SolutionSpec& solution : model_.solutions) {
      at_ = &folders_[solution.folder];
      for (const SolutionImage& image : solution.images) {
        if (!seen.emplace(solution.folder, image.relative).second) continue;
        if (solution.is_complete) at_->images->expect(image.relative, image.kind);
        const auto stamp = at_->listing.root.stamp_below(image.relative.c_str());
        if (stamp && !reader_.add_size(*at_, stamp->size_bytes)) return false;
      }
    }
    for (OneFolder& folder : folders_) folder.images->start();
    return true;
  }

  // Returns true if no signature is required, or the manifest is signed.
  bool read_signature() {
    if (options_.required_key.empty()) return true;
    auto manifest = SignedManifest::open(at_->listing.root, options_.required_key, options_.trust);
    if (!manifest) {
      diagnostics_.add(Rule::signature, {at_->listing.given, 0, 0}, manifest.error().message);
      return false;
    }
    at_->manifest = std::move(*manifest);
    return true;
  }

  // Reports files that were signed but are no longer part of the folder.
  void report_missing() {
    for (const OneFolder& folder : folders_) {
      if (!folder.manifest) continue;
      std::unordered_set<std::string_view> found;
      for (const ManifestEntry& entry : folder.entries) found.insert(entry.relative);
      for (const auto& [relative, entry] : folder.manifest->entries()) {
        if (found.count(relative) != 0) continue;
        // An earlier folder's solution is used in place of the one with this image.
        if (folder.unused_images.count(relative) != 0) continue;
        diagnostics_.add(Rule::signature, {folder.listing.shown(relative), 0, 0},
                         "signed, but gone, or named by nothing that is served");
      }
    }
  }

  // Returns false if the folder has an unknown format.
  bool read_folder_settings() {
    bool is_known = true;
    FolderSettings& own = settings_.emplace_back();
    if (!at_->listing.has_settings) return is_known;
    reader_.read(at_, {kSettingsFile}, [&](JsonValue root, const std::string&) {
      is_known = is_known_format(root, &diagnostics_);
      if (is_known) own = read_settings(root, &diagnostics_);
    });
    // A folder that serves a share of the launches cannot change settings of the process.
    if (at_->listing.share != 0 && shared_count_ < folders_.size()) own.of_process.clear();
    auto& known = model_.settings.of_process;
    for (auto& setting : own.of_process) {
      const auto first = std::ranges::find_if(
          known, [&](const auto& other) { return other.first == setting.first; });
      if (first == known.end()) {
        known.push_back(std::move(setting));
      } else {
        report_shadowed("setting", setting.first, {setting.second.file, 0, 0},
                        {first->second.file, 0, 0});
      }
    }
    return is_known;
  }

  void report_shadowed(const char* kind, const std::string& name, Place place, Place by) {
    const std::string what = std::string(kind) + (strcmp(kind, "solution") == 0 ? " of " : " ");
    diagnostics_.add(Rule::shadowed, place,
                     what + in_quotes(name) + " is not used: that in " + by.file +
                         (by.line == 0 ? "" : ":" + std::to_string(by.line)) + " comes first");
    report_->shadowed.push_back({kind, name, std::move(place), std::move(by)});
  }

  void add_definition(Definition definition) {
    definition.folder = at_->index;
    const auto known = model_.by_name.find(definition.name.name);
    if (known == model_.by_name.end()) {
      const Definition& kept = model_.definitions.emplace_back(std::move(definition));
      model_.by_name.emplace(kept.name.name, &kept);
      return;
    }
    const Definition& first = *known->second;
    if (first.folder == at_->index) {
      return report_duplicate(Rule::duplicate_definition, definition.name,
                              "definition " + in_quotes(definition.name.name), first.name.mark);
    }
    if (is_known_unused(Rule::duplicate_definition, definition.name, "definition ")) return;
    if (first.axes == definition.axes && first.arguments == definition.arguments) return;
    if (model_.folders[first.folder].share != at_->listing.share) {
      return report_duplicate(Rule::duplicate_definition, definition.name,
                              "folders that share launches need the same definitions: another " +
                                  in_quotes(definition.name.name),
                              first.name.mark);
    }
    shadows_.definitions.emplace(std::pair(at_->index, definition.name.name), definition.name.mark);
    report_shadowed("definition", definition.name.name, definition.name.mark, first.name.mark);
  }

  void add_solution(SolutionSpec solution) {
    solution.folder = at_->index;
    solution.share = at_->listing.share;
    const auto [known, is_new] =
        solved_.emplace(solution.definition.name + share_text(solution.share),
                        std::pair(at_->index, solution.definition.mark));
    const auto& [folder, mark] = known->second;
    if (folder == at_->index) return model_.solutions.push_back(std::move(solution));
    for (const SolutionImage& image : solution.images) at_->unused_images.insert(image.relative);
    shadows_.solutions.emplace(at_->index, solution.definition.name);
    report_shadowed("solution", solution.definition.name, solution.definition.mark, mark);
    unused_solutions_.push_back(std::move(solution));
  }

  void add_pattern(std::unique_ptr<PatternSpec> pattern, const std::string& relative) {
    pattern->folder = at_->index;
    const uint32_t share = at_->listing.share;
    pattern->reads_share = share != 0;
    pattern->reads_rest = share == 0;
    const auto [known, is_new] = labels_.emplace(pattern->label + share_text(share),
                                                 std::pair(at_->index, pattern->label_mark));
    const auto& [folder, mark] = known->second;
    if (is_new) {
      // If a folder with a share and one without contain the same pattern, it is kept once and
      // serves both, so that launches are not matched twice.
      const XXH128_hash_t text = reader_.text_hash();
      const auto [first, is_first] =
          texts_.emplace(std::pair(text.low64, text.high64), pattern.get());
      if (!is_first && share == 0 && first->second->reads_share &&
          first->second->label == pattern->label) {
        first->second->reads_rest = true;
      } else {
        patterns_.emplace_back(std::move(pattern), relative);
      }
      return;
    }
    const MarkedName name = {pattern->label, pattern->label_mark};
    if (folder == at_->index) {
      report_duplicate(Rule::duplicate_label, name, "pattern " + in_quotes(name.name), mark);
    } else if (!is_known_unused(Rule::duplicate_label, name, "pattern ")) {
      report_shadowed("pattern", pattern->label, pattern->label_mark, mark);
    }
  }

  // An earlier folder's entry is used in place of this one. Returns true after reporting that this
  // folder has had one of the same name already.
  bool is_known_unused(Rule rule, const MarkedName& name, const char* kind) {
    const auto [known, is_new] =
        unused_.emplace(std::tuple(rule, at_->index, name.name), name.mark);
    if (!is_new) report_duplicate(rule, name, kind + in_quotes(name.name), known->second);
    return !is_new;
  }

  void read_definitions() {
    size_t named = 0;
    reader_.read(at_, at_->listing.definitions, [&](JsonValue root, const std::string&) {
      auto definition = read_definition(root, &diagnostics_);
      if (!definition) return;
      ++named;
      add_definition(std::move(*definition));
    });
    has_unread_definitions_ = has_unread_definitions_ || named != at_->listing.definitions.size();
  }

  void read_solutions() {
    model_.solutions.reserve(model_.solutions.size() + at_->listing.solutions.size());
    reader_.read(at_, at_->listing.solutions, [&](JsonValue root, const std::string& relative) {
      if (options_.lint != nullptr) options_.lint->check_json(FolderLint::Kind::solution, root);
      const uint32_t errors_before = diagnostics_.error_count();
      auto solution = read_solution(root, relative, &known_texts_, &diagnostics_);
      if (!solution) return;
      if (options_.lint != nullptr) options_.lint->read_solution(root, *solution, &diagnostics_);
      solution->is_complete = diagnostics_.error_count() == errors_before;
      add_solution(std::move(*solution));
    });
  }

  void read_all() {
    for (OneFolder& folder : folders_) {
      at_ = &folder;
      read_definitions();
      read_solutions();
    }
    const uint32_t errors_before_patterns = diagnostics_.error_count();
    for (OneFolder& folder : folders_) {
      at_ = &folder;
      reader_.read_patterns(at_, [&](JsonValue root, const std::string& relative) {
        if (options_.lint != nullptr) options_.lint->check_json(FolderLint::Kind::pattern, root);
        auto pattern = reader_.pattern(root);
        if (pattern != nullptr) add_pattern(std::move(pattern), relative);
      });
    }
    has_faulty_patterns_ = diagnostics_.error_count() != errors_before_patterns;
    apply_definition_settings();
    // Sort into the order in which patterns are tried.
    std::ranges::stable_sort(patterns_, {}, [](const auto& one) {
      return std::pair<int64_t, std::string_view>(-int64_t{one.first->benefit}, one.first->label);
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
    for (const FolderSettings& settings : settings_) {
      for (const DefinitionSetting& setting : settings.of_definitions) report_unless_known(setting);
    }
    for (SolutionSpec& solution : model_.solutions) {
      for (size_t i = 0; i < settings_.size(); ++i) {
        const DefinitionSetting* const setting = settings_[i].find(solution.definition.name);
        if (setting == nullptr || model_.folders[i].share != solution.share) continue;
        solution.on_error = setting->on_error;
        solution.on_mismatch = setting->on_mismatch;
        solution.shadow_interval = setting->shadow_interval;
        break;
      }
    }
  }

  void report_unless_known(const DefinitionSetting& setting) {
    const bool is_known =
        setting.is_glob()
            ? std::ranges::any_of(model_.definitions,
                                  [&](const auto& one) { return setting.fits(one.name.name); })
            : model_.by_name.count(setting.definition.name) != 0;
    if (!is_known) report_unknown_definition(setting.definition);
  }

  void report_duplicate(Rule rule, const MarkedName& second, const std::string& what, Mark first) {
    diagnostics_.add(rule, second.mark,
                     what + " is already in " + *first.file + ":" + std::to_string(first.line));
  }

  void check_solutions() {
    for (SolutionSpec& solution : model_.solutions) {
      at_ = &folders_[solution.folder];
      ImageStore& store = *at_->images;
      const Definition* const definition = model_.definition_of(solution);
      if (definition == nullptr) report_unknown_definition(solution.definition);
      if (!solution.is_complete) continue;
      if (definition != nullptr) {
        check_names(solution, *definition, supplied_, has_faulty_patterns_, &diagnostics_);
      }
      check_images(&solution, definition, &store, &diagnostics_);
      for (const SolutionImage& image : solution.images) {
        const ImageFacts& facts = store.facts(image.relative, image.kind);
        reader_.add_to_digest(image.relative);
        reader_.add_to_digest(facts.hash);
        if (facts.read_error || !at_->listed_images.insert(image.relative).second) continue;
        at_->trust.check(image.relative, facts.stamp);
        at_->entries.push_back({image.relative, facts.size_bytes, facts.hash});
      }
    }
    for (OneFolder& folder : folders_) folder.images.reset();
  }

  // If one folder requires batch invariance, it does so for all folders.
  void leave_out_variant_solutions() {
    for (const FolderSettings& settings : settings_) {
      model_.settings.requires_batch_invariant |= settings.requires_batch_invariant;
    }
    for (SolutionSpec& solution : model_.solutions) {
      if (!model_.settings.requires_batch_invariant || solution.batch_invariant == true) continue;
      solution.lacks_invariance = true;
      diagnostics_.add(Rule::not_batch_invariant, solution.launch_mark,
                       "solution " + in_quotes(solution.name.name) +
                           " is not used: it does not claim to be batch-invariant, which " +
                           kSettingsFile + " requires");
    }
  }

  void report_unknown_definition(const MarkedName& name) {
    if (has_unread_definitions_) return;  // it may be one that could not be read
    std::vector<std::string_view> known;
    if (diagnostics_.has_suggestions_left()) {
      for (const Definition& definition : model_.definitions) known.push_back(definition.name.name);
    }
    diagnostics_.add(Rule::unknown_definition, name.mark,
                     "no file below definitions/ has the definition " + in_quotes(name.name),
                     diagnostics_.suggestion(name.name, known));
  }

  void report_unreachable(const std::vector<bool>& is_reached) {
    for (size_t i = 0; i < model_.solutions.size(); ++i) {
      const SolutionSpec& solution = model_.solutions[i];
      if (is_reached[i]) continue;
      diagnostics_.add(Rule::unreachable_solution, solution.definition.mark,
                       "no pattern leads to definition " + in_quotes(solution.definition.name));
    }
  }

  void finish_digest() {
    const XXH128_hash_t digest = reader_.digest();
    model_.digest[0] = digest.low64;
    model_.digest[1] = digest.high64;
  }

  const CheckOptions& options_;
  CheckReport* report_;
  Diagnostics diagnostics_;
  FolderModel model_;
  std::deque<OneFolder> folders_;
  OneFolder* at_ = nullptr;               // the folder being read
  std::vector<FolderSettings> settings_;  // one for each folder
  FileReader reader_;
  KnownTexts known_texts_;
  Shadows shadows_;
  std::unordered_map<std::string, std::pair<uint16_t, Mark>> solved_;  // by folder, at place
  std::unordered_map<std::string, std::pair<uint16_t, Mark>> labels_;
  // Definitions and patterns of which an earlier folder's is used: by rule, folder and name.
  std::map<std::tuple<Rule, uint16_t, std::string>, Mark> unused_;
  std::deque<SolutionSpec> unused_solutions_;
  std::map<std::pair<uint64_t, uint64_t>, PatternSpec*> texts_;  // first of each text, by hash
  size_t shared_count_ = 0;                                      // folders that have a share
  std::vector<std::pair<std::unique_ptr<PatternSpec>, std::string>> patterns_;  // with their files
  SuppliedNames supplied_;
  size_t pattern_count_ = 0;
  // Set so that unreadable files do not cause errors about valid ones.
  bool has_unread_definitions_ = false;
  bool has_faulty_patterns_ = false;
};

}  // namespace

CheckReport check_folder(const std::string& folders, const CheckOptions& options) noexcept {
  CheckReport report;
  try {
    // On the heap: the object is large, and an engine's thread may have a small stack.
    const auto check = std::make_unique<FolderCheck>(options, &report);
    try {
      check->run(folders);
    } catch (const std::exception& error) {
      report.snapshot.reset();
      check->diagnostics().add(Rule::internal, {folders, 0, 0}, error.what());
    }
    check->fill_report();
    if (options.model != nullptr) *options.model = check->release_model();
  } catch (...) {
    // There is no memory even for the message, so only the counts say that nothing was loaded.
    report = CheckReport{};
    report.error_count = report.invalid_count = 1;
  }
  return report;
}

}  // namespace fibshim
