#include "loader/check/file_reader.h"

#include "loader/read/buffers.h"
#include "loader/read/known_strings.h"

namespace fibshim {
namespace {

// Many files may be in memory ahead of their turn, so a larger file is read in its turn.
constexpr size_t kMaxFileAheadBytes = 64 << 10;
constexpr size_t kFilesPerThread = 64;
constexpr size_t kPatternsPerThread = 16;

}  // namespace

struct FileReader::JsonFile {
  explicit JsonFile(FileContent read)
      : content(std::move(read)), hash(XXH3_128bits(content.bytes.data(), content.bytes.size())) {}

  FileContent content;
  const XXH128_hash_t hash;
  std::optional<JsonDocument> document;  // empty if not parsed yet, or parsing has findings
  std::unique_ptr<PatternSpec> pattern;  // null if not read yet, or reading has findings
};

// What the threads of one read() share.
struct FileReader::Shared {
  const bool are_patterns;
  KnownStrings known{};
  KnownTexts texts{};
  Buffers<std::string> buffers{kMaxFileAheadBytes};
  Buffers<JsonDocument::Nodes> nodes{kMaxFileAheadBytes};
};

FileReader::FileReader(bool wants_entries, std::deque<std::string>* names, Diagnostics* diagnostics)
    : wants_entries_(wants_entries), names_(names), diagnostics_(diagnostics) {
  XXH3_128bits_reset(&digest_);
}

void FileReader::read(OneFolder* folder, const std::vector<std::string>& files, const Use& use) {
  Shared shared{.are_patterns = false};
  read(folder, files, use, &shared);
}

void FileReader::read_patterns(OneFolder* folder, const Use& use) {
  Shared shared{.are_patterns = true};
  read(folder, folder->listing.patterns, use, &shared);
}

std::unique_ptr<PatternSpec> FileReader::pattern(JsonValue root) {
  return pattern_ != nullptr ? std::move(pattern_) : read_pattern(root, diagnostics_);
}

void FileReader::read(OneFolder* folder, const std::vector<std::string>& files, const Use& use,
                      Shared* shared) {
  std::vector<const std::string*> names;
  names.reserve(files.size());
  for (const std::string& file : files) {
    names.push_back(&names_->emplace_back(folder->listing.shown(file)));
  }
  Ahead<JsonFile> ahead(files.size(), shared->are_patterns ? kPatternsPerThread : kFilesPerThread,
                        [&](size_t i) { return read_ahead(*folder, files[i], *names[i], shared); });
  for (size_t i = 0; i < files.size(); ++i) {
    if (diagnostics_->is_full() || !is_within_limit()) return;
    std::unique_ptr<JsonFile> file = ahead.fetch(i);
    if (file == nullptr) file = read_late(*folder, files[i], *names[i]);
    if (file == nullptr) continue;
    use_file(folder, files[i], names[i], file.get(), use);
    shared->buffers.give(std::move(file->content.bytes));
    if (file->document) shared->nodes.give(file->document->take_nodes());
  }
}

// Runs on any thread and reports nothing. Returns null if reading fails.
std::unique_ptr<FileReader::JsonFile> FileReader::read_ahead(const OneFolder& folder,
                                                             const std::string& relative,
                                                             const std::string& name,
                                                             Shared* shared) const {
  auto content = folder.listing.root.read(relative, kMaxFileAheadBytes, shared->buffers.take());
  if (!content) return nullptr;
  auto file = std::make_unique<JsonFile>(std::move(*content));
  if (folder.manifest) return file;  // do not parse before the signature is checked
  Diagnostics unsaid;
  file->document = JsonDocument::parse(file->content.bytes, &name, &unsaid, &shared->known,
                                       shared->nodes.take());
  if (!unsaid.all().empty()) file->document.reset();
  if (!shared->are_patterns || !file->document) return file;
  file->pattern = read_pattern(file->document->root(), &unsaid, &shared->texts);
  if (!unsaid.all().empty()) file->pattern.reset();
  return file;
}

// Reads a file in its turn. Returns null after reporting it if that fails.
std::unique_ptr<FileReader::JsonFile> FileReader::read_late(const OneFolder& folder,
                                                            const std::string& relative,
                                                            const std::string& name) {
  auto content = folder.listing.root.read(relative, kMaxJsonBytes);
  if (content) return std::make_unique<JsonFile>(std::move(*content));
  diagnostics_->add(Rule::file_read, {name, 0, 0}, content.error().message);
  return nullptr;
}

void FileReader::use_file(OneFolder* folder, const std::string& relative, const std::string* name,
                          JsonFile* file, const Use& use) {
  folder->trust.check(relative, file->content.stamp);
  const std::string& bytes = file->content.bytes;
  if (!add_size(*folder, bytes.size())) return;
  text_hash_ = file->hash;
  if (!check_entry(folder, relative, bytes)) return;
  add_to_digest(relative);
  XXH3_128bits_update(&digest_, &file->hash, sizeof file->hash);
  if (is_lfs_pointer(bytes)) {
    diagnostics_->add(Rule::file_read, {*name, 0, 0}, kLfsPointer);
    return;
  }
  if (!file->document) file->document = JsonDocument::parse(bytes, name, diagnostics_);
  pattern_ = std::move(file->pattern);
  if (file->document) use(file->document->root(), relative);
}

// Returns false if a key is required and has not signed these bytes.
bool FileReader::check_entry(OneFolder* folder, const std::string& relative,
                             std::string_view bytes) {
  if (!folder->manifest && !wants_entries_) return true;
  const Sha256 hash = sha256(bytes);
  folder->entries.push_back({relative, bytes.size(), hash});
  if (!folder->manifest) return true;
  const std::string why = folder->manifest->difference(relative, bytes.size(), hash);
  if (why.empty()) return true;
  diagnostics_->add(Rule::signature, {folder->listing.shown(relative), 0, 0}, why);
  return false;
}

bool FileReader::add_size(const OneFolder& folder, uint64_t bytes) {
  total_bytes_ += bytes;
  if (is_within_limit()) return true;
  diagnostics_->add(Rule::limit, {folder.listing.given, 0, 0},
                    "files that are too large together; at most " +
                        std::to_string(kMaxFolderBytes) + " bytes are accepted");
  return false;
}

void FileReader::add_to_digest(std::string_view bytes) {
  const uint64_t size = bytes.size();
  XXH3_128bits_update(&digest_, &size, sizeof size);
  XXH3_128bits_update(&digest_, bytes.data(), bytes.size());
}

}  // namespace fibshim
