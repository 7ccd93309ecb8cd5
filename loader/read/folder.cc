#include "loader/read/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "loader/read/ahead.h"

namespace fibshim {
namespace {

constexpr std::string_view kJson = ".json";

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return result;
}

constexpr size_t kFoldersPerThread = 64;
constexpr size_t kMaxAheadEntries = 256;

class FolderWalk {
 public:
  FolderWalk(FolderListing* listing, Diagnostics* diagnostics)
      : listing_(listing), diagnostics_(diagnostics) {
    const RootFolder& root = listing->root;
    open_.push_back({static_cast<dev_t>(root.device()), static_cast<ino_t>(root.inode())});
  }

  // Reports entries of the root whose names are misspellings of ours: nothing below them is read.
  void report_misspelt() {
    const auto opened = listing_->root.open_below(".", O_RDONLY | O_DIRECTORY);
    if (!opened) return;
    const std::vector<std::string_view> ours = {"definitions", "solutions", "patterns",
                                                kSettingsFile};
    size_t count = 0;
    for_each_entry(opened->get(), [&](const std::string& name, unsigned char) {
      if (++count > kMaxFolderFiles) return false;
      if (std::ranges::find(ours, name) != ours.end()) return true;
      const std::string_view meant = nearest_word(lower(name), ours);
      if (meant.empty() || is_there(std::string(meant).c_str())) return true;
      error(name, "not read: it is called " + in_quotes(name),
            "did you mean " + in_quotes(meant) + "?");
      return true;
    });
  }

  // Looks in the open folder, never at its path, which may lead elsewhere by now.
  bool is_there(const char* name) const {
    return listing_->root.stamp_below(name, RootFolder::Links::kept).has_value();
  }

  // Returns the sorted *.json files below `relative`; none if that folder does not exist.
  std::vector<std::string> collect(const std::string& relative) {
    found_.clear();
    walk(relative);
    std::sort(found_.begin(), found_.end());
    return std::move(found_);
  }

  bool is_too_large() const { return entries_ > kMaxFolderFiles; }

 private:
  struct Identity {
    dev_t device;
    ino_t inode;
    bool operator==(const Identity&) const = default;
  };

  void error(const std::string& relative, std::string message, std::string hint = {}) {
    diagnostics_->add(Rule::folder, {listing_->shown(relative), 0, 0}, std::move(message),
                      std::move(hint));
  }

  // Passes each name that is not hidden and its DT_ type to `use` until that returns false. Does
  // not use readdir(), which allocates for every folder and asks for what is known here.
  template <class Use>
  static void for_each_entry(int fd, const Use& use) {
    alignas(dirent64) char buffer[16384];
    for (ssize_t got; (got = getdents64(fd, buffer, sizeof buffer)) > 0;) {
      for (ssize_t at = 0; at < got;) {
        const auto* const entry = reinterpret_cast<const dirent64*>(buffer + at);
        at += entry->d_reclen;
        if (entry->d_name[0] != '.' && !use(entry->d_name, entry->d_type)) return;
      }
    }
  }

  struct Entry {
    std::string name;
    unsigned char type;  // links followed
    bool is_loop;        // a link that leads back to itself
  };
  // The contents of one folder. Any thread can read them.
  struct Contents {
    std::optional<Error> error;  // if set, the rest is empty
    Identity self{};
    FileStamp stamp{};
    std::vector<Entry> entries;
  };

  std::unique_ptr<Contents> read(const std::string& relative, size_t most_entries) const {
    auto contents = std::make_unique<Contents>();
    const auto opened = listing_->root.open_below(relative, O_RDONLY | O_DIRECTORY);
    struct stat status {};
    if (!opened) {
      contents->error = opened.error();
    } else if (fstat(opened->get(), &status) != 0) {
      contents->error = Error{ErrorCode::operating_system,
                              std::string("cannot read the folder: ") + strerror(errno)};
    }
    if (contents->error) return contents;
    contents->self = {status.st_dev, status.st_ino};
    contents->stamp = stamp_of(status, opened->get());
    for_each_entry(opened->get(), [&](const char* name, unsigned char type) {
      errno = 0;
      struct stat target {};
      if ((type == DT_UNKNOWN || type == DT_LNK) && fstatat(opened->get(), name, &target, 0) == 0) {
        if (S_ISDIR(target.st_mode)) type = DT_DIR;
        if (S_ISREG(target.st_mode)) type = DT_REG;
      }
      contents->entries.push_back({name, type, type == DT_LNK && errno == ELOOP});
      return contents->entries.size() <= most_entries;
    });
    return contents;
  }

  // Returns null for a folder with many entries: only one such folder is in memory at a time.
  std::unique_ptr<Contents> read_ahead(const std::string& relative) const {
    auto contents = read(relative, kMaxAheadEntries);
    return contents->entries.size() <= kMaxAheadEntries ? std::move(contents) : nullptr;
  }

  // `contents`: null if the folder was not read ahead.
  void walk(const std::string& relative, std::unique_ptr<Contents> contents = nullptr) {
    if (is_too_large()) return;
    if (contents == nullptr) contents = read(relative, kMaxFolderFiles);
    if (contents->error) {
      const Error& why = *contents->error;
      if (why.code == ErrorCode::invalid_value) {
        error(relative, "a link that leaves the config folder",
              "put the folder itself here, or point FIBSHIM_CONFIG at a link to the whole");
      } else if (const auto stamp = listing_->root.stamp_below(relative.c_str());
                 stamp && !S_ISDIR(stamp->mode)) {
        error(relative, "not a folder");
      } else if (why.code != ErrorCode::file_not_found || open_.size() > 1 || is_link(relative)) {
        error(relative, why.message);
      }
      return;
    }
    if (std::ranges::find(open_, contents->self) != open_.end()) {
      error(relative, "a link to a folder that it lies in");
      return;
    }
    if (open_.size() > kMaxFolderDepth) {
      error(relative, "folders are nested too deeply; at most " + std::to_string(kMaxFolderDepth) +
                          " are accepted");
      return;
    }
    listing_->folders.push_back({relative, contents->stamp});
    std::vector<std::string> folders;
    for (const auto& [name, type, is_loop] : contents->entries) {
      if (++entries_ > kMaxFolderFiles) {
        if (entries_ == kMaxFolderFiles + 1) {
          error(relative, "too many files; at most " + std::to_string(kMaxFolderFiles) +
                              " entries are accepted");
        }
        return;
      }
      std::string below = relative;
      below.append("/").append(name);
      if (type == DT_DIR) {
        folders.push_back(below);
      } else if (name.size() > 5 && name.substr(name.size() - 5) != kJson &&
                 lower(name).ends_with(kJson)) {
        error(below, "not read: its name ends in " + in_quotes(name.substr(name.size() - 5)),
              "let it end in \".json\"");
      } else if (is_loop) {
        error(below, "a link that comes back to itself");
      } else if (name.size() > kJson.size() && name.ends_with(kJson)) {
        found_.push_back(below);  // of any file type: reading it reports a wrong one
      }
    }
    open_.push_back(contents->self);
    contents.reset();
    // Only the folders of one level are read ahead; otherwise nested folders would each start
    // threads.
    Ahead<Contents> ahead(folders.size(), is_ahead_ ? SIZE_MAX : kFoldersPerThread,
                          [&](size_t i) { return read_ahead(folders[i]); });
    const bool was_ahead =
        std::exchange(is_ahead_, is_ahead_ || folders.size() >= kFoldersPerThread);
    for (size_t i = 0; i < folders.size(); ++i) walk(folders[i], ahead.fetch(i));
    is_ahead_ = was_ahead;
    open_.pop_back();
  }

  bool is_link(const std::string& relative) const {
    const auto stamp = listing_->root.stamp_below(relative.c_str(), RootFolder::Links::kept);
    return stamp && S_ISLNK(stamp->mode);
  }

  FolderListing* listing_;
  Diagnostics* diagnostics_;
  std::vector<std::string> found_;
  std::vector<Identity> open_;  // the root and the folders that lead to this one, to detect loops
  size_t entries_ = 0;
  bool is_ahead_ = false;  // the folders of an outer level are being read ahead
};

constexpr size_t kMostReported = 8;  // of the files that others can write

constexpr std::string_view kDefinitions = "definitions";
constexpr std::string_view kFormat = "format";
constexpr std::string_view kRequireBatchInvariant = "require_batch_invariant";

constexpr std::string_view kPrefix = "FIBSHIM_";

std::string name_in_file(const SettingInfo& setting) {
  return lower(std::string_view(setting.name).substr(kPrefix.size()));
}

// Returns null after reporting it if no setting has that name. `accepted` is for the message.
const SettingInfo* find_setting(const JsonValue::Member& member,
                                const std::vector<std::string>& accepted,
                                Diagnostics* diagnostics) {
  const std::string key = lower(member.key);
  for (const SettingInfo& setting : kSettings) {
    if (key == name_in_file(setting)) return &setting;
  }
  for (const RemovedSetting& removed : kRemovedSettings) {
    if (key != lower(std::string_view(removed.name).substr(kPrefix.size()))) continue;
    diagnostics->add(Rule::unknown_setting, member.key_mark, in_quotes(member.key) + " is gone",
                     removed.instead);
    return nullptr;
  }
  const std::vector<std::string_view> words(accepted.begin(), accepted.end());
  const bool has_prefix = key.substr(0, kPrefix.size()) == lower(kPrefix);
  const std::string_view word = has_prefix ? std::string_view(key).substr(kPrefix.size()) : key;
  diagnostics->add(Rule::unknown_setting, member.key_mark,
                   "unknown setting " + in_quotes(member.key) +
                       (words.size() == 1 ? "; accepted is " : "; accepted are ") +
                       list_words(words),
                   diagnostics->suggestion(word, words));
  return nullptr;
}

// Returns nothing after reporting it if the setting does not accept the value.
std::optional<std::string> accept_setting_value(const SettingInfo& setting, const std::string& what,
                                                const std::string& text, const Mark& mark,
                                                Diagnostics* diagnostics) {
  if (setting.choices[0] == nullptr && takes_text(setting.id, text.c_str())) return text;
  for (const char* choice : setting.choices) {
    if (choice != nullptr && strcasecmp(text.c_str(), choice) == 0) return choice;
  }
  diagnostics->add(Rule::setting_value, mark,
                   what + " is " + in_quotes(text) + "; accepted are " + setting.value_words);
  return std::nullopt;
}

// Returns a value that the setting accepts, or nothing after reporting why.
std::optional<std::string> read_setting_value(const SettingInfo& setting, const std::string& what,
                                              JsonValue value, Diagnostics* diagnostics) {
  if (setting.id == SettingId::quarantine && value.kind() == JsonKind::integer) {
    return accept_setting_value(setting, what, std::to_string(value.integer()), value.mark(),
                                diagnostics);
  }
  const auto text = read_text(value, what, diagnostics);
  if (!text) return std::nullopt;
  return accept_setting_value(setting, what, text->text, value.mark(), diagnostics);
}

// Reads the settings of one definition, or of all definitions that a glob matches.
void read_definition_setting(JsonValue object, DefinitionSetting* out, Diagnostics* diagnostics) {
  std::vector<std::string> accepted;
  for (const SettingId id : {SettingId::on_error, SettingId::shadow, SettingId::on_mismatch}) {
    accepted.push_back(name_in_file(kSettings[static_cast<size_t>(id)]));
  }
  for (const JsonValue::Member& member : object.members()) {
    const SettingInfo* const found = find_setting(member, accepted, diagnostics);
    if (found == nullptr) continue;
    if (std::ranges::find(accepted, name_in_file(*found)) == accepted.end()) {
      diagnostics->add(Rule::unknown_setting, member.key_mark,
                       in_quotes(member.key) + " cannot be set for one definition",
                       "set it beside \"definitions\"");
      continue;
    }
    const auto text =
        read_setting_value(*found, in_quotes(member.key), object.value_of(member), diagnostics);
    if (!text) continue;
    if (found->id == SettingId::shadow) {
      (void)parse_shadow(text->c_str(), &out->shadow_interval);
    } else if (found->id == SettingId::on_mismatch) {
      out->on_mismatch = *text == "warn"         ? OnMismatch::warn
                         : *text == "quarantine" ? OnMismatch::quarantine
                                                 : OnMismatch::quarantine_job;
    } else {
      out->on_error = *text == "fail" ? SolutionOnError::fail : SolutionOnError::fallback;
    }
  }
}

void read_definition_settings(JsonValue object, std::vector<DefinitionSetting>* out,
                              Diagnostics* diagnostics) {
  const std::string what = in_quotes(kDefinitions);
  if (!expect_kind(object, JsonKind::object, what, diagnostics) ||
      !check_entry_count(object, what, diagnostics)) {
    return;
  }
  for (const JsonValue::Member& member : object.members()) {
    DefinitionSetting setting;
    setting.definition = {std::string(member.key), member.key_mark};
    const JsonValue value = object.value_of(member);
    if (!check_name(member.key, member.key_mark, "a definition's name", diagnostics) ||
        !expect_kind(value, JsonKind::object, in_quotes(member.key), diagnostics)) {
      continue;
    }
    read_definition_setting(value, &setting, diagnostics);
    out->push_back(std::move(setting));
  }
}

}  // namespace

std::optional<FolderListing> list_folder(const std::string& folder, Trust trust,
                                         Diagnostics* diagnostics) {
  const auto fault = [&](const std::string& message) {
    diagnostics->add(Rule::folder, {folder.empty() ? "(config folder)" : folder, 0, 0}, message);
  };
  auto root = RootFolder::open(folder);
  if (!root) {
    fault(folder.empty() ? "no folder is named" : root.error().message);
    return std::nullopt;
  }
  FolderListing listing;
  listing.given = folder;
  while (listing.given.size() > 1 && listing.given.back() == '/') listing.given.pop_back();
  listing.root = std::move(*root);
  listing.trust = trust_rule(trust);

  FolderWalk walk(&listing, diagnostics);
  walk.report_misspelt();
  if (!walk.is_there("definitions") && !walk.is_there("solutions") && !walk.is_there("patterns")) {
    fault("not a config folder: it has none of definitions/, solutions/ and patterns/");
    return std::nullopt;
  }
  listing.definitions = walk.collect("definitions");
  listing.solutions = walk.collect("solutions");
  listing.patterns = walk.collect("patterns");
  if (walk.is_too_large()) return std::nullopt;
  listing.has_settings = walk.is_there(kSettingsFile);
  return listing;
}

void TrustCheck::check_way() {
  for (Distrust& distrust : distrust_of_way(listing_.root, listing_.trust)) {
    distrust.why += "; " + listing_.given + " is reached through it";
    found_.push_back(std::move(distrust));
  }
  way_count_ = found_.size();
}

void TrustCheck::check(const std::string& relative, const FileStamp& stamp) {
  const std::string why = distrust_of(stamp, listing_.root.stamp(), listing_.trust);
  if (why.empty()) return;
  ++count_;
  const bool is_mode = why.starts_with("writable");
  needs_chmod_ = needs_chmod_ || is_mode;
  if (count_ > kMostReported) return;
  found_.push_back({relative.empty() ? listing_.given : listing_.shown(relative), why, is_mode});
}

void TrustCheck::finish() {
  if (found_.empty()) return;
  // One command line removes all the write permissions, on the way and below.
  std::string ways;
  for (size_t i = 0; i < way_count_; ++i) {
    if (found_[i].is_mode) ways += " " + found_[i].path;
  }
  std::string command = ways.empty() ? "" : "chmod go-w" + ways;
  if (needs_chmod_) command += (ways.empty() ? "" : " && ") + ("chmod -R go-w " + listing_.given);
  const std::string hint =
      (command.empty() ? "put the config folder where nobody else can exchange it"
                       : "take the right away (" + command + ")") +
      std::string(", or say with FIBSHIM_TRUST whom to trust");
  std::ranges::sort(found_, {}, &Distrust::path);  // as findings, so that the hint comes last
  for (Distrust& distrust : found_) {
    const bool is_last = &distrust == &found_.back();
    diagnostics_->add(Rule::untrusted, {std::move(distrust.path), 0, 0}, std::move(distrust.why),
                      is_last ? hint : "");
  }
  if (count_ <= kMostReported) return;
  diagnostics_->add(
      Rule::untrusted, {listing_.given, 0, 0},
      std::to_string(count_ - kMostReported) + " more files and folders that others can write");
}

bool DefinitionSetting::fits(const std::string& name) const {
  return is_glob() ? fnmatch(definition.name.c_str(), name.c_str(), 0) == 0
                   : definition.name == name;
}

const DefinitionSetting* FolderSettings::find(const std::string& definition) const {
  const DefinitionSetting* found = nullptr;
  for (const DefinitionSetting& setting : of_definitions) {
    if (!setting.fits(definition)) continue;
    if (!setting.is_glob()) return &setting;
    if (found == nullptr) found = &setting;
  }
  return found;
}

bool is_known_format(JsonValue settings, Diagnostics* diagnostics) {
  const JsonValue value =
      settings.kind() == JsonKind::object ? settings.find(kFormat) : JsonValue();
  const auto format = read_integer(value, 1, INT64_MAX, in_quotes(kFormat), diagnostics);
  if (!format || *format <= kFolderFormat) return true;
  diagnostics->add(Rule::folder_format, value.mark(),
                   "the folder was made for a newer fibshim: it has format " +
                       std::to_string(*format) + ", this fibshim reads up to " +
                       std::to_string(kFolderFormat));
  return false;
}

FolderSettings read_settings(JsonValue root, Diagnostics* diagnostics) {
  FolderSettings settings;
  if (!expect_kind(root, JsonKind::object, kSettingsFile, diagnostics)) return settings;
  std::vector<std::string> names;
  for (const SettingInfo& setting : kSettings) {
    if (setting.is_allowed_in_folder) names.push_back(name_in_file(setting));
  }
  names.emplace_back(kDefinitions);
  names.emplace_back(kFormat);
  names.emplace_back(kRequireBatchInvariant);
  std::set<std::string_view> keys;
  for (const JsonValue::Member& member : root.members()) {
    if (!keys.insert(member.key).second) continue;  // reported as a mistake in JSON
    const JsonValue value = root.value_of(member);
    if (member.key == kDefinitions) {
      read_definition_settings(value, &settings.of_definitions, diagnostics);
      continue;
    }
    if (member.key == kFormat) continue;  // is_known_format()
    if (member.key == kRequireBatchInvariant) {
      settings.requires_batch_invariant =
          read_boolean(value, in_quotes(kRequireBatchInvariant), diagnostics).value_or(false);
      continue;
    }
    const SettingInfo* const found = find_setting(member, names, diagnostics);
    if (found == nullptr) continue;
    if (!found->is_allowed_in_folder) {
      diagnostics->add(Rule::unknown_setting, member.key_mark,
                       in_quotes(member.key) + " cannot be set in a folder",
                       std::string("set ") + found->name + " in the environment");
      continue;
    }
    const auto text = read_setting_value(*found, in_quotes(member.key), value, diagnostics);
    if (!text) continue;
    auto& known = settings.of_process;
    const bool is_repeated = std::any_of(
        known.begin(), known.end(), [&](const auto& other) { return other.first == found->name; });
    if (is_repeated) {
      // The same key in another letter case; to JSON these are two keys.
      diagnostics->add(Rule::duplicate_key, member.key_mark,
                       "setting " + in_quotes(member.key) + " is there twice");
      continue;
    }
    known.emplace_back(found->name, FolderSetting{*text, *member.key_mark.file});
  }
  return settings;
}

std::string share_text(uint32_t share) {
  if (share == 0) return "";
  std::string out = "@" + std::to_string(share / 100);
  if (share % 100 != 0) {
    const std::string places = std::to_string(100 + share % 100).substr(1);
    out += "." + (places[1] == '0' ? places.substr(0, 1) : places);
  }
  return out + "%";
}

}  // namespace fibshim
