// Files that a process keeps mapped for readers beside it, one for each process: its counters and its
// recording.
//
// No descriptor is kept: hosts close descriptors that they do not know, and the number would then
// belong to another file. Space is reserved before it is touched: a store into a hole of a full file system
// would kill the process with SIGBUS.
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

namespace fibshim {

// A file by name, as long as it is the one that this process made.
struct ProcessFile {
  char path[PATH_MAX];
  dev_t device;
  ino_t inode;
};

// Makes "<folder>/<pid>-<start_time><suffix>", the folder too, open for reading and writing; of the
// programs that a process goes on with by exec "<pid>-<start_time>-<number><suffix>", so that what an
// earlier one has written stays. The folder must belong to this user or root, and nobody else
// may write in it unless it is sticky, as /tmp is: others could replace the files. For the same reason
// no link of another user may lead to it, and it may not lie in a folder that anybody can write in.
// Returns -1 and sets `reason` on failure.
int create_process_file(const char* folder, uint64_t start_time, const char* suffix, mode_t mode,
                        ProcessFile* file, const char** reason);

// The folder alone, by the same rules; -1 and `reason` as above.
int open_process_folder(const char* folder, const char** reason);

// Opens the file again. -1: it is gone, or another file has its name.
int reopen_process_file(const ProcessFile& file);

// Backs a range of the file with real pages. False, with errno, when there is no space.
bool reserve_file_range(int file, uint64_t at, uint64_t bytes);

// Growing a file past RLIMIT_FSIZE raises a signal that kills.
bool is_within_file_limit(uint64_t bytes);

// Field 22 of /proc/<pid>/stat: with the pid it names a process for good. 0: there is no such process.
uint64_t process_start_time(const char* pid = "self");

uint64_t unix_time_ns();

// /proc/self/exe, and the command line with blanks between arguments; cut to fit.
void read_executable(char* out, size_t out_size);
void read_command_line(char* out, size_t out_size);

}  // namespace fibshim
