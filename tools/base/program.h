// The version and the exit codes of `fibshim`.
#ifndef FIBSHIM_TOOLS_BASE_PROGRAM_H_
#define FIBSHIM_TOOLS_BASE_PROGRAM_H_

namespace fibshim::tools {

inline constexpr char kVersion[] = "0.1.0";

inline constexpr int kExitFine = 0;
inline constexpr int kExitWrong = 1;
inline constexpr int kExitUsage = 2;
// As env(1): the command was found but cannot be run; it was not found.
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_BASE_PROGRAM_H_
