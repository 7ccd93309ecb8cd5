// Decides whether a config folder is trusted (FIBSHIM_TRUST): who can change its files, and who can
// change which folder its path names.
//
// file.h collects the stamps from the opened files; this module judges them.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>
#include <vector>

#include "loader/read/file.h"
#include "shim/abi/settings.h"

namespace fibshim {

// Returns the current value of FIBSHIM_TRUST, or owner if it is unset or not understood. For our
// own programs only: the shim passes its loader the value from the start of the process.
Trust trust_in_force();

// A group whose only member is one user. Many systems give every user such a group; whoever is in
// it is that user.
struct PrivateGroup {
  uint32_t gid, uid;
};

// True if this text of /etc/nsswitch.conf names a source of users or groups other than /etc/passwd
// and /etc/group, such as an LDAP server. systemd does not count: it adds no members to the groups
// of these files.
bool names_other_services(std::string_view nsswitch);

// A Trust setting with the facts needed to apply it in this process's user namespace.
struct TrustRule {
  Trust trust = Trust::owner;
  uint32_t system_uid = 0;  // owner of "/", and so of every library: trusted as root is
  // The uid shown for every user that the user namespace does not map; UINT32_MAX if there is none.
  uint32_t unknown_uid = UINT32_MAX;
  // From /etc/passwd and /etc/group only: a name service must not be loaded into the host process.
  std::vector<PrivateGroup> private_groups;
};
TrustRule trust_rule(Trust trust);

// Says why the file or folder is not trusted, such as "writable by its group (mode 0664)"; empty if
// it is trusted. `root`: the config folder itself, whose owner is trusted.
std::string distrust_of(const FileStamp& stamp, const FileStamp& root, const TrustRule& rule);

// A path that is not trusted.
struct Distrust {
  std::string path;
  std::string why;
  bool is_mode = false;  // the cause is a permission that chmod can remove
};
// Returns the steps on the way to `root` where somebody else could put another folder.
std::vector<Distrust> distrust_of_way(const RootFolder& root, const TrustRule& rule);

// Reads a file that itself decides about trust, such as a public key. Fails as read_file() does,
// and if another user could write the file or replace it.
Result<std::string> read_trusted_file(const std::string& path, size_t max_bytes, Trust trust);

}  // namespace fibshim
