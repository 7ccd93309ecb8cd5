#include "loader/read/trust.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "shim/abi/writers.h"

namespace fibshim {
namespace {

bool is_link(const FileStamp& stamp) { return S_ISLNK(stamp.mode); }

// Returns the uid shown for users that this user namespace does not map. Returns UINT32_MAX if that
// uid is itself mapped, as in the first namespace, or if there is no uid_map.
uint32_t unknown_uid() {
  FILE* const map = fopen("/proc/self/uid_map", "re");
  if (map == nullptr) return UINT32_MAX;
  unsigned overflow = 65534;
  if (FILE* const file = fopen("/proc/sys/kernel/overflowuid", "re")) {
    if (fscanf(file, "%u", &overflow) != 1) overflow = 65534;
    fclose(file);
  }
  bool is_mapped = false;
  unsigned long long first = 0;
  unsigned long long outside = 0;
  unsigned long long count = 0;
  while (fscanf(map, "%llu %llu %llu", &first, &outside, &count) == 3) {
    is_mapped = is_mapped || (overflow >= first && overflow - first < count);
  }
  fclose(map);
  return is_mapped ? UINT32_MAX : overflow;
}

// Returns the groups that are the primary group of one user and have no other member. Reads the
// files and not the name service, which would load libraries into the host. If another service is
// configured, it may know further members, so no group is private.
std::vector<PrivateGroup> private_groups() {
  const auto services = read_file("/etc/nsswitch.conf", 1 << 16);
  if (services ? names_other_services(*services) : access("/etc/nsswitch.conf", F_OK) == 0) {
    return {};
  }
  using File = std::unique_ptr<FILE, int (*)(FILE*)>;
  char buffer[16384];  // a longer line is an error and ends the reading
  struct Group {
    std::set<uint32_t> users;
    std::set<std::string> names;
    bool is_listed = false;
    bool has_others = false;
  };
  std::map<uint32_t, Group> groups;
  const File users(fopen("/etc/passwd", "re"), fclose);
  passwd user{};
  passwd* got_user = nullptr;
  while (users != nullptr &&
         fgetpwent_r(users.get(), &user, buffer, sizeof buffer, &got_user) == 0) {
    Group& group = groups[user.pw_gid];
    group.users.insert(user.pw_uid);
    group.names.insert(user.pw_name);
  }
  const File listed(fopen("/etc/group", "re"), fclose);
  struct group entry {};
  struct group* got = nullptr;
  while (listed != nullptr && fgetgrent_r(listed.get(), &entry, buffer, sizeof buffer, &got) == 0) {
    Group& group = groups[entry.gr_gid];
    group.is_listed = true;
    for (char** member = entry.gr_mem; *member != nullptr; ++member) {
      group.has_others = group.has_others || group.names.count(*member) == 0;
    }
  }
  // A file that was not read to its end may list further members.
  if (users == nullptr || listed == nullptr || !feof(users.get()) || !feof(listed.get())) return {};
  std::vector<PrivateGroup> found;
  for (const auto& [gid, group] : groups) {
    if (!group.is_listed || group.has_others || group.users.size() != 1) continue;
    found.push_back({gid, *group.users.begin()});
  }
  return found;
}

// True if the only member of the file's group is the file's owner or this process's user.
bool is_private_group(const FileStamp& stamp, const TrustRule& rule) {
  if (stamp.may_have_acl) return false;
  return std::ranges::any_of(rule.private_groups, [&](const PrivateGroup& group) {
    return group.gid == stamp.gid && group.uid != rule.unknown_uid &&
           (group.uid == stamp.uid || group.uid == geteuid());
  });
}

bool is_system(uint32_t uid, const TrustRule& rule) { return uid == 0 || uid == rule.system_uid; }

// Returns a text such as "owned by user 1000, who is neither root nor ...".
std::string strange_owner(uint32_t uid, const char* neither, const TrustRule& rule) {
  if (uid == rule.unknown_uid) {
    return "owned by a user that this user namespace does not know (shown as " +
           std::to_string(uid) + ")";
  }
  return "owned by user " + std::to_string(uid) + ", who is neither root" + neither;
}

// Says by whom the file is writable; empty if only trusted users can write it.
std::string strange_writers(const FileStamp& stamp, const TrustRule& rule) {
  const auto mode = [&] {
    static constexpr char kDigits[] = "01234567";
    std::string digits = " (mode 0";
    for (const int shift : {6, 3, 0}) digits += kDigits[stamp.mode >> shift & 7];
    return digits + ")";
  };
  const Writers writers = writers_of(stamp.mode);
  if (writers == Writers::everybody) return "writable by everybody" + mode();
  // If the file has an ACL, the group bits are its mask: the most that any entry grants.
  if (writers == Writers::group && rule.trust == Trust::owner && !is_private_group(stamp, rule)) {
    return "writable by its group" + mode();
  }
  return {};
}

// Judges one step of the way. `why` is empty if the step is trusted.
Distrust distrust_of_step(const WayStep& step, uint32_t owner, bool is_last,
                          const TrustRule& rule) {
  const uint32_t uid = step.stamp.uid;
  const bool is_unknown = uid == rule.unknown_uid;
  const bool is_ours = is_system(uid, rule) || (uid == geteuid() && !is_unknown);
  if (!is_ours && step.holder.mode != 0 && !strange_writers(step.holder, rule).empty()) {
    return {step.path,
            strange_owner(uid, " nor you, in a folder where others can put things", rule)};
  }
  if (is_last) return {};
  if (!is_ours && (is_unknown || uid != owner)) {
    return {step.path, strange_owner(uid, ", nor the owner of what it leads to, nor you", rule)};
  }
  if (is_link(step.stamp) || keeps_names(step.stamp.mode)) return {};
  return {step.path, strange_writers(step.stamp, rule), true};
}

std::vector<Distrust> distrust_of_steps(const std::vector<WayStep>& steps, const TrustRule& rule) {
  std::vector<Distrust> found;
  if (rule.trust == Trust::all) return found;
  for (const WayStep& step : steps) {
    const bool is_last = &step == &steps.back();
    Distrust distrust = distrust_of_step(step, steps.back().stamp.uid, is_last, rule);
    const bool is_known = std::ranges::any_of(
        found, [&](const Distrust& other) { return other.path == distrust.path; });
    if (!distrust.why.empty() && !is_known) found.push_back(std::move(distrust));
  }
  return found;
}

}  // namespace

Trust trust_in_force() {
  const SettingInfo& setting = kSettings[static_cast<size_t>(SettingId::trust)];
  const char* const value = secure_getenv(setting.name);
  for (size_t i = 0; value != nullptr && i < std::size(setting.choices); ++i) {
    if (setting.choices[i] != nullptr && strcasecmp(value, setting.choices[i]) == 0) {
      return static_cast<Trust>(i);
    }
  }
  return Trust::owner;
}

bool names_other_services(std::string_view nsswitch) {
  for (size_t at = 0; at < nsswitch.size();) {
    const size_t end = std::min(nsswitch.find('\n', at), nsswitch.size());
    std::string_view line = nsswitch.substr(at, end - at);
    at = end + 1;
    line = line.substr(0, line.find('#'));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    constexpr std::string_view kBlanks = " \t\r";
    std::string_view database = line.substr(0, colon);
    database.remove_prefix(std::min(database.find_first_not_of(kBlanks), database.size()));
    database = database.substr(0, database.find_first_of(kBlanks));
    if (database != "passwd" && database != "group" && database != "initgroups") continue;
    std::string_view rest = line.substr(colon + 1);
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
      if (rest.empty()) break;
      const bool is_action = rest[0] == '[';  // such as [SUCCESS=merge]
      const size_t length =
          std::min(is_action ? rest.find(']') : rest.find_first_of(" \t\r["), rest.size());
      const std::string_view service = rest.substr(0, length);
      if (!is_action && service != "files" && service != "systemd") return true;
      rest.remove_prefix(std::min(length + (is_action ? 1 : 0), rest.size()));
    }
  }
  return false;
}

TrustRule trust_rule(Trust trust) {
  TrustRule rule;
  rule.trust = trust;
  if (rule.trust == Trust::all) return rule;
  struct stat status {};
  if (stat("/", &status) == 0) rule.system_uid = status.st_uid;
  rule.unknown_uid = unknown_uid();
  if (rule.trust == Trust::owner) rule.private_groups = private_groups();
  return rule;
}

std::string distrust_of(const FileStamp& stamp, const FileStamp& root, const TrustRule& rule) {
  if (rule.trust == Trust::all) return {};
  const bool is_named = stamp.uid == root.uid || stamp.uid == geteuid();
  if (!is_system(stamp.uid, rule) && (!is_named || stamp.uid == rule.unknown_uid)) {
    return strange_owner(stamp.uid, ", nor the owner of the config folder, nor you", rule);
  }
  // The sticky bit does not help here: others could still add files to the folder.
  return strange_writers(stamp, rule);
}

std::vector<Distrust> distrust_of_way(const RootFolder& root, const TrustRule& rule) {
  return distrust_of_steps(root.way(), rule);
}

Result<std::string> read_trusted_file(const std::string& path, size_t max_bytes, Trust trust) {
  auto file = read_with_way(path, max_bytes);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  const TrustRule rule = trust_rule(trust);
  FileStamp own{};
  own.uid = geteuid();
  std::string why = distrust_of(file->content.stamp, own, rule);
  std::string place = path;
  if (why.empty()) {
    const auto distrusted = distrust_of_steps(file->way, rule);
    if (!distrusted.empty()) {
      place = distrusted.front().path;
      why = distrusted.front().why;
    }
  }
  if (!why.empty())
    return fail(ErrorCode::operating_system,
                "cannot read " + path + ": not trusted: " + place + " is " + why);
  return std::move(file->content.bytes);
}

}  // namespace fibshim
