// A prebuilt index stands for the folder that it was made from, and for no other.
#include "loader/check/index.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/check/snapshot_layout.h"
#include "tests/loader/test_folder.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;

void write_index_of(const TestFolder& folder) {
  CheckReport report;
  const auto written = write_index(folder.path(), {}, &report);
  ASSERT_TRUE(written) << written.error().message;
}

bool is_same(const Snapshot& a, const Snapshot& b) {
  return a.size_bytes == b.size_bytes && memcmp(&a, &b, a.size_bytes) == 0;
}

// Expects that the index is taken, and is what an ordinary load gives.
void expect_current(const std::string& folder) {
  const OpenedIndex index = open_index(folder);
  ASSERT_NE(index.snapshot, nullptr) << index.refusal;
  EXPECT_EQ(index.refusal, "");
  const CheckReport report = check_folder(folder);
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_TRUE(is_same(*index.snapshot, *report.snapshot));
}

void expect_refused(const TestFolder& folder, const std::string& why) {
  const OpenedIndex index = open_index(folder.path());
  EXPECT_EQ(index.snapshot, nullptr);
  EXPECT_EQ(index.refusal, why);
}

// As cp, git and image layers do: another time, and often another inode, for the same bytes.
void renew_stamps(const TestFolder& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const timespec times[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
  }
}

TEST(Index, IsTheSnapshotThatAnOrdinaryLoadGives) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"mode": "observe"})");
  write_index_of(folder);
  expect_current(folder.path());
}

TEST(Index, IsNotMissedWhereThereIsNone) {
  const TestFolder folder;
  const OpenedIndex index = open_index(folder.path());
  EXPECT_EQ(index.snapshot, nullptr);
  EXPECT_EQ(index.refusal, "");
  EXPECT_EQ(open_index("/nonexistent").snapshot, nullptr);
}

TEST(Index, FindsWhatFitsASymbol) {
  const TestFolder folder;
  write_index_of(folder);
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  char message[512] = "not written";
  const Snapshot* const snapshot = api.open(folder.path().c_str(), {}, message, sizeof message);
  ASSERT_NE(snapshot, nullptr) << message;
  EXPECT_STREQ(message, "");
  SymbolMatch match;
  EXPECT_EQ(api.match(snapshot, "_Z12engine_scaleIfEvPT_PKT_iif", &match, 1), 1u);
  EXPECT_EQ(api.match(snapshot, "_Z12engine_scaleIfEvPT_PKT_iii", &match, 1), 0u);
  ImageBytes bytes;
  EXPECT_EQ(api.read_image(snapshot, 0, 0, &bytes, message, sizeof message), 0) << message;
  api.release_image(&bytes);
  api.close(snapshot);
}

TEST(Index, HoldsForACopyOfTheFolder) {
  const TestFolder folder;
  write_index_of(folder);
  const TestFolder other;
  fs::remove_all(other.path());
  fs::copy(folder.path(), other.path(), fs::copy_options::recursive);
  expect_current(other.path());
}

TEST(Index, HoldsWhenOnlyTimesHaveChanged) {
  const TestFolder folder;
  write_index_of(folder);
  renew_stamps(folder);
  expect_current(folder.path());
}

TEST(Index, HoldsWhenAFileThatIsNotReadComesOrGoes) {
  const TestFolder folder;
  write_index_of(folder);
  folder.write("solutions/me/README.md", "words");
  folder.write("solutions/me/spare.sm_90.cubin", "not read");
  expect_current(folder.path());
}

struct Change {
  const char* name;
  void (*change)(const TestFolder& folder);
  const char* why;

  friend void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }
};

// Exchanges one byte and leaves size and mtime as they were.
void poke(const TestFolder& folder, const char* file, std::string_view from, std::string_view to) {
  struct stat before {};
  ASSERT_EQ(stat(folder.path(file).c_str(), &before), 0);
  folder.change(file, from, to);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, folder.path(file).c_str(), times, 0), 0);
}

const Change kChanges[] = {
    {"Definition", [](const TestFolder& f) { poke(f, kDefinitionPath, "x * 2", "x * 3"); },
     "definitions/scale/scale_n64.json has changed"},
    {"Solution", [](const TestFolder& f) { poke(f, kSolutionPath, "rows > 0", "rows > 1"); },
     "solutions/me/scale_n64.json has changed"},
    {"Pattern", [](const TestFolder& f) { poke(f, kPatternPath, "x != 0", "x != 8"); },
     "patterns/engine-scale.json has changed"},
    {"Image",
     [](const TestFolder& f) {
       std::string bytes = f.read(kImagePath);
       bytes[bytes.size() / 2] ^= 1;
       f.write(kImagePath, bytes);
     },
     "solutions/me/scale.sm_90.cubin has changed"},
    {"Size", [](const TestFolder& f) { f.change(kPatternPath, "x != 0", "x != 64"); },
     "patterns/engine-scale.json has changed"},
    {"ExchangedFile",
     [](const TestFolder& f) {
       f.write("patterns/new", replaced(kPattern, "x != 0", "x != 8"));
       fs::rename(f.path("patterns/new"), f.path(kPatternPath));
     },
     "patterns/engine-scale.json has changed"},
    {"NewFile",
     [](const TestFolder& f) {
       f.write("patterns/b.json", replaced(kPattern, "\"engine-scale\"", "\"b\""));
     },
     "patterns/b.json is new"},
    {"NewFolder",
     [](const TestFolder& f) {
       f.write("definitions/new/b.json", replaced(kDefinition, "\"scale_n64\"", "\"b\""));
     },
     "definitions/new is new"},
    {"RenamedFile",
     [](const TestFolder& f) { fs::rename(f.path(kPatternPath), f.path("patterns/z.json")); },
     "patterns/engine-scale.json is gone"},
    {"LostFile", [](const TestFolder& f) { f.remove(kDefinitionPath); },
     "definitions/scale/scale_n64.json is gone"},
    {"LostImage", [](const TestFolder& f) { f.remove(kImagePath); },
     "solutions/me/scale.sm_90.cubin is gone"},
    {"LostFolder", [](const TestFolder& f) { f.remove("patterns"); }, "patterns is gone"},
    {"NewSettings", [](const TestFolder& f) { f.write("fibshim.json", "{}"); },
     "fibshim.json is new"},
    {"FileOfOthers",
     [](const TestFolder& f) { ASSERT_EQ(chmod(f.path(kPatternPath).c_str(), 0666), 0); },
     "patterns/engine-scale.json is not trusted"},
    {"FolderOfOthers",
     [](const TestFolder& f) { ASSERT_EQ(chmod(f.path("solutions/me").c_str(), 0777), 0); },
     "solutions/me is not trusted"},
    {"RootOfOthers", [](const TestFolder& f) { ASSERT_EQ(chmod(f.path().c_str(), 0777), 0); },
     "it is not trusted"},
    {"IndexOfOthers",
     [](const TestFolder& f) { ASSERT_EQ(chmod(f.path(kIndexFile).c_str(), 0666), 0); },
     "it is writable by everybody (mode 0666)"},
    {"NoIndex", [](const TestFolder& f) { f.write(kIndexFile, "nothing"); }, "it is no index"},
    {"EmptyIndex", [](const TestFolder& f) { f.write(kIndexFile, ""); }, "it is no index"},
    {"CutIndex",
     [](const TestFolder& f) {
       fs::resize_file(f.path(kIndexFile), fs::file_size(f.path(kIndexFile)) - 1);
     },
     "it is cut short"},
    {"DamagedIndex",
     [](const TestFolder& f) {
       std::string bytes = f.read(kIndexFile);
       bytes[bytes.size() / 2] ^= 1;
       f.write(kIndexFile, bytes);
     },
     "it is damaged"},
    {"FutureIndex",
     [](const TestFolder& f) {
       std::string bytes = f.read(kIndexFile);
       bytes[8] ^= 2;  // its version
       f.write(kIndexFile, bytes);
     },
     "another version of fibshim wrote it"},
    {"ForeignIndex",
     [](const TestFolder& f) {
       std::string bytes = f.read(kIndexFile);
       std::swap(bytes[12], bytes[15]);  // its byte order
       std::swap(bytes[13], bytes[14]);
       f.write(kIndexFile, bytes);
     },
     "it is from a machine of another byte order"},
};

class IndexChange : public testing::TestWithParam<Change> {};

TEST_P(IndexChange, MakesTheIndexRefused) {
  const TestFolder folder;
  write_index_of(folder);
  ASSERT_NE(open_index(folder.path()).snapshot, nullptr);
  GetParam().change(folder);
  expect_refused(folder, GetParam().why);
}

// The same where no stamp agrees: nothing is found out by the stamps alone.
TEST_P(IndexChange, IsSeenInAFolderOfOtherStampsToo) {
  const TestFolder folder;
  write_index_of(folder);
  GetParam().change(folder);
  renew_stamps(folder);
  expect_refused(folder, GetParam().why);
}

INSTANTIATE_TEST_SUITE_P(Every, IndexChange, testing::ValuesIn(kChanges),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(Index, ThatIsRefusedLeadsToAnOrdinaryLoadThatSaysSo) {
  const TestFolder folder;
  write_index_of(folder);
  folder.change(kPatternPath, "\"benefit\": 3", "\"benefit\": 7");
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  char message[512];
  const Snapshot* const snapshot = api.open(folder.path().c_str(), {}, message, sizeof message);
  ASSERT_NE(snapshot, nullptr) << message;
  EXPECT_EQ(snapshot->begin(snapshot->patterns)->benefit, 7);
  EXPECT_EQ(std::string(message),
            folder.path(kIndexFile) +
                " is not used: patterns/engine-scale.json has changed; fibshim check --write-index "
                "makes a new one");
  api.close(snapshot);
}

TEST(Index, IsNotWrittenForAFolderWithErrors) {
  const TestFolder folder;
  write_index_of(folder);
  const std::string before = folder.read(kIndexFile);
  folder.write(kImagePath, "not a cubin");
  CheckReport report;
  const auto written = write_index(folder.path(), {}, &report);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message,
            folder.path(kIndexFile) + " was not written: the folder has errors");
  EXPECT_GT(report.error_count, 0u);
  EXPECT_EQ(folder.read(kIndexFile), before);
  // Nor is anything left behind.
  size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) entries += entry.exists();
  EXPECT_EQ(entries, 4u);
}

TEST(Index, IsReplacedAndReadableByAll) {
  const TestFolder folder;
  write_index_of(folder);
  folder.change(kPatternPath, "\"benefit\": 3", "\"benefit\": 7");
  write_index_of(folder);
  expect_current(folder.path());
  struct stat status {};
  ASSERT_EQ(stat(folder.path(kIndexFile).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
}

// What follows is an index whose hash is right: only the bounds are left to refuse it.
void set_checksum(std::string* bytes) {
  constexpr size_t kHeader = 64;
  const XXH128_hash_t hash = XXH3_128bits(bytes->data() + kHeader, bytes->size() - kHeader);
  memcpy(bytes->data() + 24, &hash.low64, 8);
  memcpy(bytes->data() + 32, &hash.high64, 8);
}

TEST(Index, WithAHashThatFitsItsDamageIsReadWithinBounds) {
  const TestFolder folder;
  write_index_of(folder);
  const std::string sound = folder.read(kIndexFile);
  {
    std::string same = sound;
    set_checksum(&same);
    ASSERT_EQ(same, sound) << "the header is not where this test thinks";
  }
  std::mt19937 random(7);
  uint32_t refused = 0;
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = sound;
    for (uint32_t i = 0; i <= random() % 4; ++i) {
      const size_t at = 64 + random() % (bytes.size() - 64);
      const int values[] = {0, 1, 0xff, 0x7f, static_cast<int>(random() % 256)};
      bytes[at] = static_cast<char>(values[random() % 5]);
    }
    set_checksum(&bytes);
    folder.write(kIndexFile, bytes);
    const OpenedIndex index = open_index(folder.path());
    refused += index.snapshot == nullptr;
    if (index.snapshot == nullptr) continue;
    SymbolMatch match;
    api.match(index.snapshot.get(), "_Z12engine_scaleIfEvPT_PKT_iif", &match, 1);
    char message[256];
    ImageBytes image;
    api.read_image(index.snapshot.get(), 0, 0, &image, message, sizeof message);
    api.release_image(&image);
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_LT(refused, 4000u);
}

// An entry as it lies in the file.
struct Entry {
  FileStamp stamp;
  uint64_t digest[2];
  uint64_t path;
};
using NamedEntries = std::vector<std::pair<std::string, Entry>>;

template <class T>
T word_at(const std::string& bytes, size_t at) {
  T value;
  memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
constexpr size_t kCountsAt = 40;  // bytes of the snapshot, bytes of the texts, entries

size_t entries_at(const std::string& index) {
  return 64 + (word_at<uint64_t>(index, kCountsAt) + 7) / 8 * 8;
}

NamedEntries entries_of(const std::string& index) {
  const size_t count = word_at<uint64_t>(index, kCountsAt + 16);
  const size_t texts_at = entries_at(index) + count * sizeof(Entry);
  NamedEntries entries;
  for (size_t i = 0; i < count; ++i) {
    const auto entry = word_at<Entry>(index, entries_at(index) + i * sizeof(Entry));
    entries.emplace_back(index.data() + texts_at + entry.path, entry);
  }
  return entries;
}

std::string with_counts(std::string index, size_t text_bytes, size_t entry_count) {
  const uint64_t counts[] = {text_bytes, entry_count};
  memcpy(index.data() + kCountsAt + 8, counts, sizeof counts);
  set_checksum(&index);
  return index;
}

// The index with these entries in the place of its own.
std::string forged(const std::string& index, const NamedEntries& entries) {
  std::string bytes = index.substr(0, entries_at(index));
  std::string texts;
  for (auto [path, entry] : entries) {
    entry.path = texts.size();
    bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
    texts.append(path).append(1, '\0');
  }
  return with_counts(bytes + texts, texts.size(), entries.size());
}

class ForgedIndex : public testing::Test {
 protected:
  ForgedIndex() {
    write_index_of(folder_);
    sound_ = folder_.read(kIndexFile);
    entries_ = entries_of(sound_);
  }
  std::string refusal_of(const std::string& bytes) {
    folder_.write(kIndexFile, bytes);
    return open_index(folder_.path()).refusal;
  }
  std::string refusal_of(const NamedEntries& entries) {
    return refusal_of(forged(sound_, entries));
  }
  // Files that are not there: a refusal for another reason did not look.
  static NamedEntries files(size_t count, uint64_t size_bytes) {
    NamedEntries entries;
    for (size_t i = 0; i < count; ++i) {
      Entry entry{};
      entry.stamp.mode = S_IFREG | 0644;
      entry.stamp.size_bytes = size_bytes;
      entries.emplace_back("file" + std::to_string(1000000 + i), entry);
    }
    return entries;
  }

  TestFolder folder_;
  std::string sound_;
  NamedEntries entries_;
};

TEST_F(ForgedIndex, WithItsOwnEntriesIsItself) {
  ASSERT_EQ(entries_.size(), 11u);
  EXPECT_EQ(forged(sound_, entries_), sound_);
}

TEST_F(ForgedIndex, NamesEveryPathOnceAndInOrder) {
  for (size_t i = 0; i + 1 < entries_.size(); ++i) {
    NamedEntries entries = entries_;
    std::swap(entries[i], entries[i + 1]);
    EXPECT_EQ(refusal_of(entries), "it is damaged") << i;
    entries = entries_;
    entries.insert(entries.begin() + static_cast<long>(i), entries[i]);
    EXPECT_EQ(refusal_of(entries), "it is damaged") << i;
  }
  NamedEntries entries = entries_;
  entries.insert(entries.begin(), files(1, 0)[0]);
  entries[0].first = "";
  EXPECT_EQ(refusal_of(entries), "it is damaged");
}

// Else many entries could share a text, and one pass over them would not be one over the file.
TEST_F(ForgedIndex, HasItsTextsAsItsEntriesLie) {
  const size_t text_bytes = word_at<uint64_t>(sound_, kCountsAt + 8);
  EXPECT_EQ(refusal_of(with_counts(sound_ + std::string(1, '\0'), text_bytes + 1, entries_.size())),
            "it is damaged");
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::string bytes = sound_;
    ++bytes[entries_at(sound_) + i * sizeof(Entry) + offsetof(Entry, path)];
    set_checksum(&bytes);
    EXPECT_EQ(refusal_of(bytes), "it is damaged") << i;
  }
}

TEST_F(ForgedIndex, IsNotComparedBeyondTheLimitOfEntries) {
  EXPECT_EQ(refusal_of(files(kMaxIndexEntries, 0)), "file1000000 is gone");
  EXPECT_EQ(refusal_of(files(kMaxIndexEntries + 1, 0)),
            "it names too many files; at most 262148 are accepted");
}

TEST_F(ForgedIndex, IsNotComparedWhereMoreWouldBeReadThanOfAFolder) {
  constexpr size_t kCount = kMaxFolderBytes / kMaxImageBytes;
  EXPECT_EQ(refusal_of(files(kCount, kMaxImageBytes)), "file1000000 is gone");
  NamedEntries entries = files(kCount + 1, kMaxImageBytes);
  entries.back().second.stamp.size_bytes = 1;
  const std::string why = "its files are too large together; at most 8589934592 bytes are accepted";
  EXPECT_EQ(refusal_of(entries), why);
  // A sum that overflows.
  EXPECT_EQ(refusal_of(files(2, uint64_t{1} << 63)), why);
  // What is no file is not read.
  for (auto& [path, entry] : entries) entry.stamp.mode = S_IFDIR | 0755;
  EXPECT_EQ(refusal_of(entries), "file1000000 is gone");
}

TEST_F(ForgedIndex, OfAFileOfAnotherSizeDoesNotReadIt) {
  // The digest is its own: only the sizes differ.
  folder_.write("zz", "x");
  const XXH128_hash_t hash = XXH3_128bits("x", 1);
  NamedEntries entries = entries_;
  entries.push_back(files(1, 1)[0]);
  entries.back().first = "zz";
  entries.back().second.digest[0] = hash.low64;
  entries.back().second.digest[1] = hash.high64;
  EXPECT_EQ(refusal_of(entries), "");
  entries.back().second.stamp.size_bytes = 2;
  EXPECT_EQ(refusal_of(entries), "zz has changed");
}

// --- the layout of a snapshot

class SnapshotLayout : public testing::Test {
 protected:
  SnapshotLayout() { load(); }
  void load() {
    const CheckReport report = check_folder(folder_.path());
    const Snapshot& snapshot = *report.snapshot;
    words_.assign(snapshot.size_bytes / 8 + 1, 0);
    memcpy(words_.data(), &snapshot, snapshot.size_bytes);
    size_ = snapshot.root;
  }
  Snapshot& snapshot() { return *reinterpret_cast<Snapshot*>(words_.data()); }
  template <class T>
  T& at(Array<T> array, uint32_t i) {
    return const_cast<T*>(snapshot().begin(array))[i];
  }
  bool is_sound() const {
    return is_sound_layout({reinterpret_cast<const char*>(words_.data()), size_});
  }
  // Whether it is sound with `value` in place of `field`, which is put back.
  template <class T>
  bool is_sound_with(T* field, T value) {
    std::swap(*field, value);
    const bool result = is_sound();
    std::swap(*field, value);
    return result;
  }

  TestFolder folder_;
  std::vector<uint64_t> words_;
  size_t size_ = 0;
};

TEST_F(SnapshotLayout, OfTheLoadersOwnIsSound) { EXPECT_TRUE(is_sound()); }

TEST_F(SnapshotLayout, IsRefusedWhereAnythingLeadsOutside) {
  Snapshot& s = snapshot();
  const auto size = static_cast<uint32_t>(size_);
  EXPECT_FALSE(is_sound_layout({}));
  EXPECT_FALSE(is_sound_with(&s.version, kSnapshotVersion + 1));
  EXPECT_FALSE(is_sound_with(&s.patterns.at, size));
  EXPECT_FALSE(is_sound_with(&s.patterns.at, s.patterns.at + 1));
  EXPECT_FALSE(is_sound_with(&s.patterns.count, UINT32_MAX));
  EXPECT_FALSE(is_sound_with(&s.symbols.count, 0u));
  Pattern& pattern = at(s.patterns, 0);
  EXPECT_FALSE(is_sound_with(&pattern.label, size));
  EXPECT_FALSE(is_sound_with(&pattern.label, Offset{0}));
  EXPECT_FALSE(is_sound_with(&pattern.capture_count, kMaxCaptures + 1));
  EXPECT_FALSE(is_sound_with(&pattern.key.count, kMaxKeyParts + 1));
  EXPECT_FALSE(is_sound_with(&at(pattern.routes, 0).binding, 1u));
  EXPECT_FALSE(is_sound_with(&at(pattern.name, 1).index, uint8_t{1}));
  EXPECT_FALSE(is_sound_with(&at(pattern.key, 0).program, Program{0, 0}));
  Binding& binding = at(s.bindings, 0);
  EXPECT_FALSE(is_sound_with(&binding.pattern, 1u));
  EXPECT_FALSE(is_sound_with(&binding.solution, 1u));
  EXPECT_FALSE(is_sound_with(&binding.state, static_cast<BindingState>(3)));
  EXPECT_FALSE(is_sound_with(&binding.reason, size));
  EXPECT_TRUE(is_sound_with(&binding.reason, Offset{0}));
  EXPECT_FALSE(is_sound_with(&binding.geometry[0].index, uint8_t{kGeometryCount}));
  EXPECT_FALSE(is_sound_with(&at(binding.arguments, 0).size, uint8_t{9}));
  EXPECT_FALSE(is_sound_with(&at(binding.arguments, 0).param, uint16_t{kMaxParams}));
  Solution& solution = at(s.solutions, 0);
  EXPECT_FALSE(is_sound_with(&solution.kernel, size));
  EXPECT_FALSE(is_sound_with(&solution.images.at, size - 8));
  EXPECT_FALSE(is_sound_with(&at(solution.images, 0).kind, static_cast<ImageKind>(3)));
  SymbolEntry& symbol = at(s.symbols, 0);
  EXPECT_FALSE(is_sound_with(&symbol.text, size));
  EXPECT_FALSE(is_sound_with(&symbol.filing, static_cast<SymbolEntry::Filing>(4)));
  EXPECT_FALSE(is_sound_with(&symbol.capture_count, uint8_t{1}));
}

TEST_F(SnapshotLayout, IsRefusedWhereAProgramLeavesItsStack) {
  folder_.change(kPatternPath, "factor == 0.1", "rows == 5");
  load();
  const Program where = at(snapshot().patterns, 0).where;
  Step& last = at(where, where.count - 1);
  ASSERT_EQ(last.op, Op::require_equal);  // takes nothing and leaves nothing
  const auto with = [&](Op op, uint16_t index) {
    Step step{};
    step.op = op;
    step.index = index;
    return is_sound_with(&last, step);
  };
  EXPECT_TRUE(with(Op::require_equal, 0));
  EXPECT_FALSE(with(Op::require_equal, kMaxParams));
  EXPECT_FALSE(with(Op::add, 0));  // takes what is not there
  EXPECT_FALSE(with(Op::require, 0));
  EXPECT_FALSE(with(Op::push, 0));  // leaves what nobody takes
  EXPECT_FALSE(with(static_cast<Op>(200), 0));
}

// Arrays may share their memory, so that few bytes can stand for any amount of work.
TEST_F(SnapshotLayout, IsRefusedWhereLookingAtItTakesTooLong) {
  constexpr uint32_t kSteps = 1 << 14;
  constexpr uint32_t kBindings = 1 << 13;
  folder_.change(kPatternPath, "factor == 0.1", "rows == 5");
  load();
  const Program where = at(snapshot().patterns, 0).where;
  const Step step = at(where, where.count - 1);
  ASSERT_EQ(step.op, Op::require_equal);
  Binding binding = at(snapshot().bindings, 0);
  const size_t steps_at = (size_ + 7) / 8 * 8;
  const size_t bindings_at = steps_at + kSteps * sizeof(Step);
  size_ = bindings_at + kBindings * sizeof(Binding);
  words_.resize(size_ / 8);
  snapshot().bindings.at = static_cast<Offset>(bindings_at);
  for (const uint32_t count : {kSteps / 8, kSteps}) {
    binding.where = {static_cast<Offset>(steps_at), count};
    snapshot().bindings.count = kBindings;
    for (uint32_t i = 0; i < kSteps; ++i) at(Program{binding.where.at, kSteps}, i) = step;
    for (uint32_t i = 0; i < kBindings; ++i) at(snapshot().bindings, i) = binding;
    EXPECT_EQ(is_sound(), count != kSteps);
  }
}

TEST_F(SnapshotLayout, IsRefusedWhereASymbolIsLongerThanAFolders) {
  const size_t text_at = size_;
  size_ += kMaxSymbolPatternLength + 2;
  words_.resize(size_ / 8 + 1);
  at(snapshot().symbols, 0).text = static_cast<Offset>(text_at);
  char* const text = reinterpret_cast<char*>(words_.data()) + text_at;
  memset(text, 'a', kMaxSymbolPatternLength + 1);
  text[kMaxSymbolPatternLength + 1] = '\0';
  EXPECT_FALSE(is_sound());
  text[kMaxSymbolPatternLength] = '\0';
  EXPECT_TRUE(is_sound());
}

TEST_F(SnapshotLayout, IsRefusedWhereAJumpLeavesItsProgram) {
  folder_.change(kPatternPath, "x != 0", "n > 1 || rows > 1");
  load();
  EXPECT_TRUE(is_sound());
  const Program where = at(snapshot().patterns, 0).where;
  Step* const steps = &at(where, 0);
  Step* const jump = std::find_if(steps, steps + where.count, [](const Step& step) {
    return step.op == Op::jump_if_nonzero_else_pop;
  });
  ASSERT_NE(jump, steps + where.count);
  for (const int64_t target : {int64_t{-1}, jump->imm + 1, int64_t{1000}, INT64_MAX}) {
    EXPECT_FALSE(is_sound_with(&jump->imm, target)) << target;
  }
}

}  // namespace
}  // namespace fibshim
