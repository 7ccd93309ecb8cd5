// Config folders as large as the targets speak of, made from the bench folder.
#pragma once

#include <string>

namespace fibshim::bench {

struct FolderSize {
  int patterns;   // beyond those of the bench folder; of these a third each: names, globs, regexes
  int solutions;  // of bench-hit's replacement, for 1, 2, ... columns, each with an image of its
                  // own
};

// Copies the bench folder to `path`, which it replaces, and adds to it. Throws
// std::filesystem::filesystem_error.
void make_large_folder(const std::string& bench_folder, const std::string& path, FolderSize size);

}  // namespace fibshim::bench
