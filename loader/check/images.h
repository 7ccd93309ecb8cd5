// Reads the images that solutions name, each file once even where several paths are hard links to
// it, as in the folders that make expands, and checks every solution against them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "loader/compile/definition.h"
#include "loader/read/ahead.h"
#include "loader/read/buffers.h"
#include "loader/read/folder.h"
#include "loader/read/manifest.h"
#include "loader/read/ptx.h"
#include "loader/compile/solution.h"

namespace fibshim {

// The contents of one image file.
struct ImageFacts {
  bool leaves_folder = false;       // through a link
  std::optional<Error> read_error;  // if set, nothing was parsed
  uint64_t size_bytes = 0;
  Sha256 hash{};
  std::string unsigned_reason;  // why a required signature does not cover it; nothing was parsed
  FileStamp stamp{};            // of the file that was read
  std::optional<Error> format_error;  // the file is not what its extension says, or is damaged
  uint16_t sm = 0;
  ArchScope scope = ArchScope::portable;
  std::vector<CubinInfo> cubins;  // the cubin, or the cubins in the fatbin
  std::vector<PtxInfo> ptx;       // the PTX, or the PTX entries in the fatbin
  // Some entries are damaged, or neither cubins nor PTX: their kernels are unknown.
  bool has_unreadable_entries = false;
  size_t bad_entry_count = 0;  // damaged entries of the fatbin
  std::string bad_entries;     // index and error of the first few of them
};

class ImageStore {
 public:
  // `manifest`: the signed manifest that must list the images, or null.
  ImageStore(const FolderListing& listing, const SignedManifest* manifest);

  // Announces that facts() will be called for this file, in the order of these calls. All must be
  // announced before start().
  void expect(const std::string& relative, ImageKind kind) {
    expected_.emplace_back(relative, kind);
  }

  // Begins to read ahead. Must be called before the first call of facts().
  void start();

  // Returns the facts of the file at `relative` below the root, read as `kind`.
  const ImageFacts& facts(const std::string& relative, ImageKind kind);

 private:
  using Facts = std::shared_ptr<const ImageFacts>;
  // Device, inode and time of its last change; how it is read; the most bytes.
  using FileKey = std::tuple<uint64_t, uint64_t, int64_t, int64_t, ImageKind, size_t>;
  struct SharedFile {
    std::mutex reading;
    Facts facts;  // null until it has been read
  };

  // Called from any thread.
  Facts read(const std::string& relative, ImageKind kind, size_t max_bytes);
  Facts read_opened(const FileDescriptor& file, const std::string& relative, ImageKind kind,
                    size_t max_bytes);

  const FolderListing& listing_;
  const SignedManifest* manifest_;
  std::unordered_map<std::string, Facts> facts_;
  Buffers<std::string> buffers_;
  std::mutex mutex_;  // guards shared_
  std::map<FileKey, SharedFile> shared_;
  std::vector<std::pair<std::string, ImageKind>> expected_;
  size_t asked_ = 0;  // how many of `expected_` facts() has passed
  std::optional<Ahead<Facts>> ahead_;
};

// Checks the solution against its images, fills in SM, parameter table and the first fault, and
// sorts the images, best first.
void check_images(SolutionSpec* solution, const Definition* definition, ImageStore* store,
                  Diagnostics* diagnostics);

}  // namespace fibshim
