// Whom a config folder trusts: who may change its files, and who decides which folder its path names (FIBSHIM_TRUST).
//
// The facts are file.h's, taken from what was opened; here is what follows from them.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>
#include <vector>

#include "loader/read/file.h"
#include "shim/abi/settings.h"

namespace fibshim {

// What FIBSHIM_TRUST says now; owner where it is not understood. For programs of our own: the shim
// gives its loader what held when the process began.
Trust trust_in_force();

// A group that has one user alone, as many systems give every user one: who is that group is him.
struct PrivateGroup {
  uint32_t gid, uid;
};

// Whether users or groups are known to more than /etc/passwd and /etc/group, by this /etc/nsswitch.conf: an LDAP
// server, for example. systemd is no such service: it adds none to a group of these files.
bool names_other_services(std::string_view nsswitch);

// What that means in this process' user namespace.
struct TrustRule {
  Trust trust = Trust::owner;
  uint32_t system_uid = 0;  // who owns "/" owns every library: trusted as root is
  // How the users look that the user namespace does not know, all alike; UINT32_MAX: it knows all.
  uint32_t unknown_uid = UINT32_MAX;
  // Of /etc/passwd and /etc/group alone: a name service has no place inside a host.
  std::vector<PrivateGroup> private_groups;
};
TrustRule trust_rule(Trust trust);

// Why the file or folder is not trusted, such as "writable by its group (mode 0664)"; empty when it
// is. `root`: the config folder itself, whose owner is trusted.
std::string distrust_of(const FileStamp& stamp, const FileStamp& root, const TrustRule& rule);

// Where on its way somebody else could put another folder, and why; empty when nobody can.
struct Distrust {
  std::string path;
  std::string why;
  bool is_mode = false;  // a right that chmod can take away
};
std::vector<Distrust> distrust_of_way(const RootFolder& root, const TrustRule& rule);

// The bytes of a file that decides about trust itself: as read_file(), and it fails where another
// user could write it or put another one in its place.
Result<std::string> read_trusted_file(const std::string& path, size_t max_bytes, Trust trust);

}  // namespace fibshim
