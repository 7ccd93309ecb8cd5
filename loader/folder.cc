#include "loader/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "loader/fields.h"
#include "shim/settings.h"

namespace fibshim {
namespace {

struct DirCloser {
  void operator()(DIR* dir) const { closedir(dir); }
};

class FolderWalk {
 public:
  FolderWalk(const FolderListing& listing, Diagnostics* diagnostics)
      : listing_(listing), diagnostics_(diagnostics) {}

  // Collects the *.json below `relative`. A folder that is not there has none.
  std::vector<std::string> collect(const std::string& relative) {
    found_.clear();
    walk(relative, 0);
    std::sort(found_.begin(), found_.end());
    return std::move(found_);
  }

 private:
  void error(const std::string& relative, std::string message, std::string hint = {}) {
    diagnostics_->add(Rule::folder, {listing_.shown(relative), 0, 0}, std::move(message),
                      std::move(hint));
  }

  void walk(const std::string& relative, size_t depth) {
    const std::string path = listing_.root + "/" + relative;
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
      const int reason = errno;
      struct stat status {};
      const bool is_link = lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
      if (is_link) {
        error(relative, "a link to a folder, which is not followed",
              "put the folder itself here, or point FIBSHIM_CONFIG at a link to the whole");
      } else if (reason != ENOENT || depth != 0) {
        error(relative, std::string("cannot read the folder: ") + strerror(reason));
      }
      return;
    }
    const std::unique_ptr<DIR, DirCloser> dir(fdopendir(fd));
    if (dir == nullptr) {
      close(fd);
      error(relative, std::string("cannot read the folder: ") + strerror(errno));
      return;
    }
    if (depth >= kMaxFolderDepth) {
      error(relative, "folders are nested too deeply");
      return;
    }
    std::vector<std::string> folders;
    errno = 0;
    while (const dirent* const entry = readdir(dir.get())) {
      const std::string name = entry->d_name;
      if (name[0] == '.') continue;
      if (++entries_ > kMaxFolderFiles) {
        if (entries_ == kMaxFolderFiles + 1) error(relative, "too many files");
        return;
      }
      std::string below = relative;
      below.append("/").append(name);
      unsigned char type = entry->d_type;
      if (type == DT_UNKNOWN || type == DT_LNK) {
        struct stat status {};
        if (fstatat(fd, name.c_str(), &status, 0) == 0) {
          if (S_ISDIR(status.st_mode)) type = DT_DIR;
          if (S_ISREG(status.st_mode)) type = DT_REG;
        }
      }
      if (type == DT_DIR) {
        folders.push_back(below);
      } else if (name.size() > 5 && name.compare(name.size() - 5, 5, ".json") == 0) {
        found_.push_back(below);  // whatever it is: reading it says what is wrong
      }
    }
    for (const std::string& folder : folders) walk(folder, depth + 1);
  }

  const FolderListing& listing_;
  Diagnostics* diagnostics_;
  std::vector<std::string> found_;
  size_t entries_ = 0;
};

bool is_there(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

}  // namespace

std::optional<FolderListing> list_folder(const std::string& folder, Diagnostics* diagnostics) {
  const auto fault = [&](const std::string& message, std::string hint = {}) {
    diagnostics->add(Rule::folder, {folder.empty() ? "(config folder)" : folder, 0, 0}, message,
                     std::move(hint));
  };
  struct stat status {};
  if (stat(folder.c_str(), &status) != 0) {
    fault(folder.empty() ? "no folder is named" : std::string(strerror(errno)));
    return std::nullopt;
  }
  if (!S_ISDIR(status.st_mode)) {
    fault("not a folder");
    return std::nullopt;
  }
  FolderListing listing;
  listing.given = folder;
  while (listing.given.size() > 1 && listing.given.back() == '/') listing.given.pop_back();
  const std::unique_ptr<char, decltype(&free)> real(realpath(folder.c_str(), nullptr), &free);
  if (real == nullptr) {
    fault(strerror(errno));
    return std::nullopt;
  }
  listing.root = real.get();

  const bool is_config = is_there(listing.root + "/definitions") ||
                         is_there(listing.root + "/solutions") ||
                         is_there(listing.root + "/patterns");
  if (!is_config) {
    fault("not a config folder: it has none of definitions/, solutions/ and patterns/");
    return std::nullopt;
  }
  FolderWalk walk(listing, diagnostics);
  listing.definitions = walk.collect("definitions");
  listing.solutions = walk.collect("solutions");
  listing.patterns = walk.collect("patterns");
  listing.has_settings = is_there(listing.root + "/" + kSettingsFile);
  return listing;
}

std::vector<std::pair<std::string, std::string>> read_settings(JsonValue root,
                                                               Diagnostics* diagnostics) {
  std::vector<std::pair<std::string, std::string>> settings;
  if (!expect_kind(root, JsonKind::object, kSettingsFile, diagnostics)) return settings;
  constexpr std::string_view kPrefix = "FIBSHIM_";
  const auto lower = [](std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return result;
  };

  std::vector<std::string> names;
  for (const SettingInfo& setting : kSettings) {
    if (setting.is_allowed_in_folder) {
      names.push_back(lower(std::string_view(setting.name).substr(kPrefix.size())));
    }
  }
  const std::vector<std::string_view> accepted(names.begin(), names.end());
  for (const JsonValue::Member& member : root.members()) {
    const std::string key = lower(member.key);
    const SettingInfo* found = nullptr;
    for (const SettingInfo& setting : kSettings) {
      if (key == lower(std::string_view(setting.name).substr(kPrefix.size()))) found = &setting;
    }
    if (found == nullptr) {
      const bool has_prefix = key.substr(0, kPrefix.size()) == lower(kPrefix);
      const std::string_view nearest =
          nearest_word(has_prefix ? std::string_view(key).substr(kPrefix.size()) : key, accepted);
      diagnostics->add(
          Rule::unknown_setting, member.key_mark.place(),
          "unknown setting " + quoted(member.key) + "; accepted are " + list_words(accepted),
          nearest.empty() ? "" : "did you mean " + quoted(nearest) + "?");
      continue;
    }
    if (!found->is_allowed_in_folder) {
      diagnostics->add(Rule::unknown_setting, member.key_mark.place(),
                       quoted(member.key) + " cannot be set in a folder",
                       std::string("set ") + found->name + " in the environment");
      continue;
    }
    const JsonValue value = root.value_of(member);
    const std::string what = quoted(member.key);
    const auto text = read_text(value, what, diagnostics);
    if (!text) continue;
    bool is_accepted = found->choices[0] == nullptr;
    for (const char* choice : found->choices) {
      if (choice != nullptr && text->text == choice) is_accepted = true;
    }
    if (!is_accepted) {
      diagnostics->add(Rule::setting_value, value.mark().place(),
                       what + " is " + quoted(text->text) + "; accepted are " + found->value_words);
      continue;
    }
    const bool is_repeated = std::any_of(settings.begin(), settings.end(), [&](const auto& other) {
      return other.first == found->name;
    });
    if (is_repeated) {
      // The same key in another case; JSON itself sees two keys.
      diagnostics->add(Rule::duplicate_key, member.key_mark.place(),
                       "setting " + what + " is there twice");
      continue;
    }
    settings.emplace_back(found->name, text->text);
  }
  return settings;
}

}  // namespace fibshim
