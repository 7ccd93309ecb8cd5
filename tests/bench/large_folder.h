// Makes config folders of the sizes in the performance targets, from the bench folder.
#pragma once

#include <string>

namespace fibshim::bench {

struct FolderSize {
  int patterns;   // besides those of the bench folder; a third each are names, globs, regexes
  int solutions;  // of bench-hit's replacement, for 1, 2, ... columns, each with an image of its
                  // own
};

// Replaces `path` by a copy of the bench folder, and adds to it. Throws
// std::filesystem::filesystem_error.
void make_large_folder(const std::string& bench_folder, const std::string& path, FolderSize size);

}  // namespace fibshim::bench
