// A prebuilt index stands for the folder that it was made from, and for no other.
#include "loader/index.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/snapshot_layout.h"
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
