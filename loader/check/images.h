// Reads the images that solutions name, each file once, and checks every solution against them.
#pragma once

#include <memory>
#include <unordered_map>

#include "loader/compile/definition.h"
#include "loader/read/ahead.h"
#include "loader/read/folder.h"
#include "loader/read/manifest.h"
#include "loader/read/ptx.h"
#include "loader/compile/solution.h"

namespace fibshim {

// What one image file holds.
struct ImageFacts {
  bool leaves_folder = false;       // through a link
  std::optional<Error> read_error;  // the rest is empty then
  uint64_t size_bytes = 0;
  Sha256 hash{};
  std::string unsigned_reason;  // why a required signature does not cover it; nothing was parsed
  FileStamp stamp{};            // of the bytes
  std::optional<Error> format_error;  // not what the extension says
  uint16_t sm = 0;
  ArchScope scope = ArchScope::portable;
  std::vector<CubinInfo> cubins;  // the cubin, or the fatbin's
  std::vector<PtxInfo> ptx;       // alone or in a fatbin
  bool has_unreadable_entries =
      false;                   // damaged, or neither cubins nor PTX: their kernels are not known
  size_t bad_entry_count = 0;  // those of the fatbin that are damaged
  std::string bad_entries;     // number and reason of the first few of them
};

class ImageStore {
 public:
  // `manifest`: what must have been signed, or null.
  ImageStore(const FolderListing& listing, const SignedManifest* manifest)
      : listing_(listing), manifest_(manifest) {}

  // That facts() will be asked for this file, in this order. Said before the first is.
  void expect(const std::string& relative, ImageKind kind) {
    expected_.emplace_back(relative, kind);
  }

  // Facts of the file at `relative` below the root, read as `kind`.
  const ImageFacts& facts(const std::string& relative, ImageKind kind);

 private:
  std::unique_ptr<ImageFacts> read(const std::string& relative, ImageKind kind,
                                   size_t max_bytes) const;

  const FolderListing& listing_;
  const SignedManifest* manifest_;
  std::unordered_map<std::string, std::unique_ptr<ImageFacts>> facts_;
  std::vector<std::pair<std::string, ImageKind>> expected_;
  size_t asked_ = 0;  // how many of these
  std::optional<Ahead<ImageFacts>> ahead_;
};

// Fills in what the images say (SM, parameter table, faults) and orders them, best first.
void check_images(SolutionSpec* solution, const Definition* definition, ImageStore* store,
                  Diagnostics* diagnostics);

}  // namespace fibshim
