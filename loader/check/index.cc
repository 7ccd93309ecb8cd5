#include "loader/check/index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/read/folder.h"
#include "loader/check/identity.h"
#include "loader/compile/snapshot_builder.h"
#include "loader/check/snapshot_layout.h"

namespace fibshim {
namespace {

constexpr uint32_t kIndexVersion = 1;
constexpr uint32_t kByteOrder = 0x01020304;

// The file: this header, the snapshot's movable part, entries, texts. All plain structs in
// this machine's byte order.
struct IndexHeader {
  char magic[8];  // "FIBINDEX"
  uint32_t version;
  uint32_t byte_order;
  uint64_t loader;       // kLoaderIdentity
  uint64_t checksum[2];  // XXH3-128 of everything behind the header
  uint64_t snapshot_bytes;
  uint64_t text_bytes;
  uint64_t entry_count;
};

// A folder or file that the snapshot was made from, or the lack of one. By path: neighbours in a
// folder are neighbours in the kernel's caches.
struct IndexEntry {
  FileStamp stamp;     // mode 0: there was none
  uint64_t digest[2];  // of a file
  uint64_t path;       // byte of the texts

  bool is_file() const { return S_ISREG(stamp.mode); }
};
static_assert(std::has_unique_object_representations_v<IndexHeader>);
static_assert(std::has_unique_object_representations_v<IndexEntry>);

size_t padded(size_t size) { return (size + 7) / 8 * 8; }

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

XXH128_hash_t hash_of(std::string_view bytes) { return XXH3_128bits(bytes.data(), bytes.size()); }

// An index' bytes, known to be whole and this loader's.
class Index {
 public:
  // Fails where the bytes are none.
  static Result<Index> parse(std::string bytes) {
    Index index(std::move(bytes));
    const std::string why = index.fault();
    if (!why.empty()) return fail(ErrorCode::invalid_value, why);
    return index;
  }

  std::string_view bytes() const { return bytes_; }
  std::string_view snapshot() const {
    return std::string_view(bytes_).substr(sizeof(IndexHeader), header_.snapshot_bytes);
  }
  uint64_t entry_count() const { return header_.entry_count; }
  IndexEntry entry(uint64_t i) const {
    return at<IndexEntry>(entries_at() + i * sizeof(IndexEntry));
  }
  ManifestEntry manifest_entry() const { return {kIndexFile, bytes_.size(), sha256(bytes_)}; }
  const char* text(uint64_t offset) const { return bytes_.data() + texts_at() + offset; }

 private:
  explicit Index(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  T at(size_t offset) const {
    T value;
    memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  size_t entries_at() const { return sizeof(IndexHeader) + padded(header_.snapshot_bytes); }
  size_t texts_at() const { return entries_at() + header_.entry_count * sizeof(IndexEntry); }

  // What is wrong with it, or nothing. Cheap and telling first.
  std::string fault() {
    if (bytes_.size() < sizeof(IndexHeader) || memcmp(bytes_.data(), "FIBINDEX", 8) != 0) {
      return "it is no index";
    }
    header_ = at<IndexHeader>(0);
    if (header_.byte_order != kByteOrder) return "it is from a machine of another byte order";
    if (header_.version != kIndexVersion || header_.loader != kLoaderIdentity) {
      return "another version of fibshim wrote it";
    }
    if (header_.snapshot_bytes > bytes_.size() || header_.text_bytes > bytes_.size() ||
        header_.entry_count > bytes_.size() || texts_at() + header_.text_bytes != bytes_.size()) {
      return "it is cut short";
    }
    const XXH128_hash_t hash = hash_of(std::string_view(bytes_).substr(sizeof(IndexHeader)));
    if (hash.low64 != header_.checksum[0] || hash.high64 != header_.checksum[1]) {
      return "it is damaged";
    }
    // Whoever computes a hash can make one that fits: no offset may lead outside all the same.
    if (header_.text_bytes > 0 && bytes_.back() != '\0') return "it is damaged";
    if (std::string why = fault_of_entries(); !why.empty()) return why;
    if (!is_sound_layout(snapshot())) return "it is damaged";
    return {};
  }

  // What comparing it may cost is bounded as for a folder without one: every path is there once, in
  // order, and the files are together as large as a folder's may be.
  std::string fault_of_entries() const {
    if (header_.entry_count > kMaxIndexEntries) {
      return "it names too many files; at most " + std::to_string(kMaxIndexEntries) +
             " are accepted";
    }
    uint64_t next_path = 0;
    uint64_t left_bytes = kMaxFolderBytes;
    std::string_view before;
    for (uint64_t i = 0; i < header_.entry_count; ++i) {
      const IndexEntry known = entry(i);
      // The texts lie as the entries do, so that looking at all of them takes one pass.
      if (known.path != next_path || next_path >= header_.text_bytes) return "it is damaged";
      const std::string_view path = text(known.path);
      if (path <= before) return "it is damaged";
      before = path;
      next_path += path.size() + 1;
      if (!known.is_file()) continue;
      if (known.stamp.size_bytes > left_bytes) {
        return "its files are too large together; at most " + std::to_string(kMaxFolderBytes) +
               " bytes are accepted";
      }
      left_bytes -= known.stamp.size_bytes;
    }
    return next_path == header_.text_bytes ? "" : "it is damaged";
  }

  std::string bytes_;
  IndexHeader header_{};
};

// Whether the folder is still what the index was made from.
class Comparison {
 public:
  Comparison(const std::string& folder, const RootFolder& root, const TrustRule& trust,
             const Index& index)
      : folder_(folder), root_(root), trust_(trust), index_(index) {}

  // The first difference, or nothing.
  std::string difference() {
    if (!distrust_of(root_.stamp(), root_.stamp(), trust_).empty()) return "it is not trusted";
    if (const auto distrust = distrust_of_way(root_, trust_)) {
      return distrust->path + " is not trusted";
    }
    bool are_folders_touched = false;
    for (uint64_t i = 0; i < index_.entry_count(); ++i) {
      const IndexEntry known = index_.entry(i);
      const char* const path = index_.text(known.path);
      const auto stamp = root_.stamp_below(path).value_or(FileStamp{});
      if (stamp == known.stamp) {
        if (!is_trusted(stamp)) return std::string(path) + " is not trusted";
        continue;
      }
      if (stamp.mode == 0) return std::string(path) + " is gone";
      if (known.stamp.mode == 0) return std::string(path) + " is new";
      if (!known.is_file()) {
        if (!is_trusted(stamp)) return std::string(path) + " is not trusted";
        are_folders_touched = true;
      } else if (stamp.size_bytes != known.stamp.size_bytes) {
        return std::string(path) + " has changed";
      } else {
        touched_.push_back(i);
      }
    }
    if (are_folders_touched) {
      std::string name = different_name();
      if (!name.empty()) return name;
    }
    for (const uint64_t i : touched_) {
      const IndexEntry known = index_.entry(i);
      const char* const path = index_.text(known.path);
      // It had this size a moment ago.
      const auto content =
          root_.read(path, std::min<uint64_t>(known.stamp.size_bytes, kMaxImageBytes));
      if (!content) return std::string(path) + " cannot be read";
      if (!is_trusted(content->stamp)) return std::string(path) + " is not trusted";
      const XXH128_hash_t hash = hash_of(content->bytes);
      if (hash.low64 != known.digest[0] || hash.high64 != known.digest[1]) {
        return std::string(path) + " has changed";
      }
    }
    return {};
  }

 private:
  bool is_trusted(const FileStamp& stamp) const {
    return stamp.mode == 0 || distrust_of(stamp, root_.stamp(), trust_).empty();
  }

  // Lists the folder as the check does and looks for a name that only one of the two has.
  std::string different_name() {
    Diagnostics ignored;
    const auto listing = list_folder(folder_, trust_.trust, &ignored);
    if (!listing || ignored.error_count() != 0 || listing->root.path() != root_.path()) {
      return "the folder has changed";
    }
    std::vector<std::string_view> known;
    std::vector<std::string_view> found;
    for (uint64_t i = 0; i < index_.entry_count(); ++i) {
      const IndexEntry entry = index_.entry(i);
      const std::string_view path = index_.text(entry.path);
      if (!entry.is_file() || is_json(path)) known.push_back(path);
    }
    for (const PathStamp& below : listing->folders) found.push_back(below.relative);
    for (const auto* files : {&listing->definitions, &listing->solutions, &listing->patterns}) {
      found.insert(found.end(), files->begin(), files->end());
    }
    if (listing->has_settings) found.push_back(kSettingsFile);
    std::sort(known.begin(), known.end());
    std::sort(found.begin(), found.end());
    std::vector<std::string_view> differences;
    std::set_symmetric_difference(known.begin(), known.end(), found.begin(), found.end(),
                                  std::back_inserter(differences));
    if (differences.empty()) return {};
    const bool is_new = std::binary_search(found.begin(), found.end(), differences[0]);
    return std::string(differences[0]) + (is_new ? " is new" : " is gone");
  }

  // Images have extensions of their own.
  static bool is_json(std::string_view path) {
    return path.size() > 5 && path.substr(path.size() - 5) == ".json";
  }

  const std::string& folder_;
  const RootFolder& root_;
  const TrustRule trust_;
  const Index& index_;
  std::vector<uint64_t> touched_;  // files of another stamp
};

// A file beside the index, under another name until it is whole. Removed unless it is published.
class NewIndexFile {
 public:
  explicit NewIndexFile(const std::string& folder)
      : folder_(folder), path_(folder + "/" + kIndexFile + "." + std::to_string(getpid())) {
    fd_ = FileDescriptor(
        open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  }
  ~NewIndexFile() {
    if (fd_) unlink(path_.c_str());
  }
  NewIndexFile(const NewIndexFile&) = delete;
  NewIndexFile& operator=(const NewIndexFile&) = delete;

  explicit operator bool() const { return static_cast<bool>(fd_); }

  // The file system's time, as the files of the folder have it. -1: it cannot be had.
  int64_t now_ns() const {
    struct stat status {};
    if (pwrite(fd_.get(), "", 1, 0) != 1 || fstat(fd_.get(), &status) != 0) return -1;
    return stamp_of(status).ctime_ns;
  }

  bool publish(std::string_view bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t count =
          pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    // Readable as the folder's files are, whatever the umask; on the disk before it has its name.
    if (fchmod(fd_.get(), 0644) != 0 || fsync(fd_.get()) != 0 ||
        rename(path_.c_str(), (folder_ + "/" + kIndexFile).c_str()) != 0) {
      return false;
    }
    fd_ = FileDescriptor();
    const FileDescriptor folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder) (void)fsync(folder.get());
    return true;
  }

 private:
  std::string folder_;
  std::string path_;
  FileDescriptor fd_;
};

// When the youngest file was changed.
int64_t last_change_ns(const FolderManifest& manifest) {
  int64_t last = INT64_MIN;
  for (const PathStamp& below : manifest.folders) last = std::max(last, below.stamp.ctime_ns);
  for (const FileRecord& file : manifest.files) last = std::max(last, file.stamp.ctime_ns);
  return last;
}

}  // namespace

OpenedIndex open_index(const std::string& folder, const IndexOptions& options) {
  auto root = RootFolder::open(folder);
  if (!root || !root->stamp_below(kIndexFile, RootFolder::Links::kept)) return {};
  const auto refuse = [](const std::string& why) { return OpenedIndex{nullptr, why, {}}; };
  std::optional<SignedManifest> manifest;
  if (!options.required_key.empty()) {
    auto opened = SignedManifest::open(*root, options.required_key, options.trust);
    if (!opened) return refuse(opened.error().message);
    manifest = std::move(*opened);
  }
  auto content = root->read(kIndexFile, kMaxIndexBytes);
  if (!content) {
    if (content.error().code == ErrorCode::file_not_found) return {};
    return refuse(content.error().message);
  }
  const std::string distrust =
      distrust_of(content->stamp, root->stamp(), trust_rule(options.trust));
  if (!distrust.empty()) return refuse("it is " + distrust);
  if (manifest) {
    const std::string& bytes = content->bytes;
    const std::string why = manifest->difference(kIndexFile, bytes.size(), sha256(bytes));
    if (!why.empty()) return refuse(why);
  }
  return use_index(folder, *root, std::move(content->bytes), options);
}

OpenedIndex use_index(const std::string& folder, const RootFolder& root, std::string bytes,
                      const IndexOptions& options) {
  const auto index = Index::parse(std::move(bytes));
  if (!index) return {nullptr, index.error().message, {}};
  std::string difference = Comparison(folder, root, trust_rule(options.trust), *index).difference();
  if (!difference.empty()) return {nullptr, std::move(difference), {}};
  const std::string_view block = index->snapshot();
  SnapshotMemory memory(block.size(), root.path(), options.trust);
  memcpy(memory.bytes(), block.data(), block.size());
  return {memory.finish(), {}, options.wants_entry ? index->manifest_entry() : ManifestEntry{}};
}

std::string bytes_of_index(const CheckReport& report) {
  IndexHeader header{};
  memcpy(header.magic, "FIBINDEX", 8);
  header.version = kIndexVersion;
  header.byte_order = kByteOrder;
  header.loader = kLoaderIdentity;
  std::vector<FileRecord> records = report.manifest.files;
  for (const PathStamp& below : report.manifest.folders) {
    records.push_back({below.relative, below.stamp, {0, 0}});
  }
  std::sort(records.begin(), records.end(),
            [](const FileRecord& a, const FileRecord& b) { return a.relative < b.relative; });
  const std::string_view block = movable_part(*report.snapshot);
  std::string bytes(block);
  bytes.resize(padded(block.size()));
  std::string texts;
  for (const FileRecord& record : records) {
    bytes += bytes_of(IndexEntry{record.stamp, {record.digest[0], record.digest[1]}, texts.size()});
    texts += record.relative;
    texts += '\0';
  }
  bytes += texts;
  header.snapshot_bytes = block.size();
  header.text_bytes = texts.size();
  header.entry_count = records.size();
  const XXH128_hash_t hash = hash_of(bytes);
  header.checksum[0] = hash.low64;
  header.checksum[1] = hash.high64;
  return std::string(bytes_of(header)) + bytes;
}

Result<void> write_index(const std::string& folder, const CheckOptions& options,
                         CheckReport* report) {
  const std::string path = folder + "/" + kIndexFile;
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::operating_system, path + " was not written: " + why);
  };
  NewIndexFile file(folder);
  if (!file) {
    const std::string why = strerror(errno);
    *report = check_folder(folder, options);
    return failed(why);
  }
  // Time is coarse: two changes within one tick look alike. So the clock must have gone past every
  // change before the reading begins.
  constexpr int kAttempts = 300;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int64_t began_ns = file.now_ns();
    if (began_ns < 0) return failed(strerror(errno));
    *report = check_folder(folder, options);
    if (report->snapshot == nullptr || report->error_count > 0) {
      return failed("the folder has errors");
    }
    if (last_change_ns(report->manifest) < began_ns) {
      const auto index = Index::parse(bytes_of_index(*report));
      if (!index) return failed(index.error().message);
      if (!file.publish(index->bytes())) return failed(strerror(errno));
      return {};
    }
    const timespec pause = {0, 10 * 1000 * 1000};
    nanosleep(&pause, nullptr);
  }
  return failed("its files keep changing, or bear times of the future");
}

}  // namespace fibshim
