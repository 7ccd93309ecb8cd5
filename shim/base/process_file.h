// Files that a process keeps mapped for other processes to read: its counters and its recording.
//
// No descriptor is kept open: hosts close descriptors that they do not know, and the number would
// then belong to another file. Space is reserved before it is touched, since a store into a hole on
// a full file system would kill the process with SIGBUS.
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace fibshim {

// A file by name, with its identity, to check that it is still the one that this process made.
struct ProcessFile {
  char path[PATH_MAX];
  dev_t device;
  ino_t inode;
};

// Makes "<folder>/<pid>-<start_time><suffix>", and the folder if needed, and opens it for reading
// and writing. For programs that the process has started by exec it makes
// "<pid>-<start_time>-<number><suffix>", so that the file of an earlier program stays. The folder
// must belong to this user or root, and no other user may be able to write in it unless it is
// sticky, like /tmp: others could replace the files. For the same reason the folder may not be a
// link of another user, nor be in a folder that everybody can write in unless that is sticky. On
// failure it returns -1 and sets `reason`.
int create_process_file(const char* folder, uint64_t start_time, const char* suffix, mode_t mode,
                        ProcessFile* file, const char** reason);

// Makes and opens only the folder, by the same rules. On failure it returns -1 and sets `reason`.
int open_process_folder(const char* folder, const char** reason);

// Opens the file again. -1: it is gone, or another file has its name.
int reopen_process_file(const ProcessFile& file);

// Allocates disk space for a range of the file. Returns false, with errno set, if there is none.
bool reserve_file_range(int file, uint64_t at, uint64_t bytes);

// True if a file may have this size. Growing it past RLIMIT_FSIZE raises a signal that kills.
bool is_within_file_limit(uint64_t bytes);

// Returns field 22 of /proc/<pid>/stat, which together with the pid identifies a process uniquely.
// 0: there is no such process.
uint64_t process_start_time(const char* pid = "self");

uint64_t unix_time_ns();

// Read /proc/self/exe, and the command line with blanks between arguments; cut to fit.
void read_executable(char* out, size_t out_size);
void read_command_line(char* out, size_t out_size);

}  // namespace fibshim
