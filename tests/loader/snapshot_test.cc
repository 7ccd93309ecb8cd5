// The snapshot that the shim gets, seen through the API that it uses.

#include <fcntl.h>
#include <string.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "loader/check/check.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

const LoaderApi& api() { return *fibloader_api(kLoaderApiVersion); }

class Opened {
 public:
  // Throws, which ends the test, if the folder opens or fails unexpectedly.
  explicit Opened(const std::string& folder, bool opens = true)
      : snapshot_(api().open(folder.c_str(), {}, message_, sizeof message_)) {
    if ((snapshot_ != nullptr) != opens) throw std::runtime_error(message_);
  }
  ~Opened() { api().close(snapshot_); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  const Snapshot* get() const { return snapshot_; }
  const Snapshot* operator->() const { return snapshot_; }
  std::string message() const { return message_; }
  template <class T>
  const T& at(Array<T> array, uint32_t i) const {
    EXPECT_LT(i, array.count);
    return snapshot_->begin(array)[i];
  }
  std::string text(Offset offset) const { return snapshot_->text(offset); }

 private:
  char message_[512] = "not written";
  const Snapshot* snapshot_;
};

// A launch for the valid folder: y, x, n, rows, factor.
struct Launch {
  void* y = reinterpret_cast<void*>(0x1000);
  void* x = reinterpret_cast<void*>(0x2000);
  int32_t n = 64, rows = 5;
  float factor = 0.1f;
  void* params[5] = {&y, &x, &n, &rows, &factor};
  LaunchView view{params, nullptr, {9, 1, 1, 32, 1, 1, 1, 1, 1, 0}};
};

bool run(const Opened& snapshot, Program program, const Launch& launch, int64_t* out = nullptr) {
  return run_program(snapshot->begin(program), program.count, launch.view, out);
}

TEST(LoaderApi, SpeaksOneVersion) {
  EXPECT_EQ(fibloader_api(kLoaderApiVersion + 1), nullptr);
  EXPECT_EQ(fibloader_api(0), nullptr);
  ASSERT_NE(fibloader_api(kLoaderApiVersion), nullptr);
  EXPECT_EQ(api().version, kLoaderApiVersion);
}

TEST(LoaderApi, OpensASoundFolderWithoutAWord) {
  const TestFolder folder;
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.message(), "");
  EXPECT_EQ(memcmp(snapshot->magic, "FIBSNAP", 8), 0);
  EXPECT_EQ(snapshot->version, kSnapshotVersion);
  EXPECT_EQ(snapshot->patterns.count, 1u);

  const Pattern& pattern = snapshot.at(snapshot->patterns, 0);
  EXPECT_EQ(snapshot.text(pattern.label), "engine-scale");
  EXPECT_EQ(snapshot.text(pattern.file), kPatternPath);
  EXPECT_EQ(pattern.benefit, 3);
  EXPECT_EQ(pattern.has_params, 1u);
  ASSERT_EQ(pattern.param_sizes.count, 5u);
  EXPECT_EQ(snapshot.at(pattern.param_sizes, 2), 4);
  ASSERT_EQ(pattern.name.count, 2u);
  EXPECT_EQ(snapshot.text(snapshot.at(pattern.name, 0).text), "scale_n");
  EXPECT_EQ(snapshot.at(pattern.name, 1).kind, NamePart::Kind::key);
  ASSERT_EQ(pattern.key.count, 1u);
  Launch launch;
  int64_t key = 0;
  ASSERT_TRUE(run(snapshot, snapshot.at(pattern.key, 0).program, launch, &key));
  EXPECT_EQ(key, 64);
  EXPECT_TRUE(run(snapshot, pattern.where, launch));
  launch.factor = 0.2f;
  EXPECT_FALSE(run(snapshot, pattern.where, launch));
  ASSERT_EQ(pattern.routes.count, 1u);
  EXPECT_EQ(snapshot.text(snapshot.at(pattern.routes, 0).definition), "scale_n64");

  const Solution& solution = snapshot.at(snapshot->solutions, 0);
  EXPECT_EQ(snapshot.text(solution.kernel), "scale");
  EXPECT_EQ(solution.error_code, 0);
  EXPECT_EQ(solution.max_shared_mem, 0u);
  ASSERT_EQ(solution.images.count, 2u);
  EXPECT_EQ(snapshot.at(solution.images, 0).sm, 90);  // best first
  EXPECT_EQ(snapshot.at(solution.images, 1).sm, 80);
  EXPECT_EQ(snapshot.text(snapshot.at(solution.images, 0).path), kImagePath);
  ASSERT_EQ(solution.param_sizes.count, 4u);
  EXPECT_EQ(snapshot.at(solution.param_sizes, 3), 4);
}

void expect_root(const Opened& snapshot, const std::string& folder, const std::string& spelling) {
  EXPECT_EQ(snapshot.text(snapshot->root), std::filesystem::canonical(folder)) << spelling;
  struct stat status {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(snapshot->root_device, status.st_dev) << spelling;
  EXPECT_EQ(snapshot->root_inode, status.st_ino) << spelling;
}

TEST(LoaderApi, SaysWhichFolderItOpened) {
  const TestFolder folder;
  const TestFolder other;
  std::filesystem::create_directory_symlink(folder.path(), other.path("link"));
  std::filesystem::create_directory_symlink(
      "../" + std::filesystem::path(folder.path()).filename().string(), other.path("near"));
  std::filesystem::create_directory_symlink(".", folder.path("self"));
  const int fd = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (const std::string& spelling :
       {folder.path(), folder.path() + "///", folder.path("./self/self"), other.path("link"),
        other.path("near"), folder.path("patterns/.."), other.path("link/patterns/../solutions/.."),
        "/../" + folder.path(), "/proc/self/fd/" + std::to_string(fd),
        "/proc/self/fd/" + std::to_string(fd) + "/self/patterns/.."}) {
    expect_root(Opened(spelling), folder.path(), spelling);
  }
  close(fd);
  ASSERT_EQ(chdir(folder.path("patterns").c_str()), 0);
  expect_root(Opened(".."), folder.path(), "..");
  ASSERT_EQ(chdir("/"), 0);
}

TEST(LoaderApi, DescribesOneFolderWhileTheLinkToItFlips) {
  const TestFolder top;
  std::string names[] = {"a", "b"};
  for (const std::string& name : names) {
    std::filesystem::create_directory(top.path(name));
    for (const char* part : {"definitions", "solutions", "patterns"}) {
      std::filesystem::copy(top.path(part), top.path(name + "/" + part),
                            std::filesystem::copy_options::recursive);
    }
    top.change(name + "/" + kPatternPath, "\"engine-scale\"", "\"" + name + "\"");
  }
  std::filesystem::create_directory_symlink("a", top.path("link"));
  std::atomic<bool> is_done{false};
  std::thread flips([&] {
    for (int i = 0; !is_done; ++i) {
      std::filesystem::create_directory_symlink(names[i % 2], top.path("next"));
      std::filesystem::rename(top.path("next"), top.path("link"));
    }
  });
  bool is_seen[2] = {};
  for (int i = 0; i < 100 || !is_seen[0] || !is_seen[1]; ++i) {
    const Opened snapshot(top.path("link"));
    const std::string label = snapshot.text(snapshot.at(snapshot->patterns, 0).label);
    is_seen[label == "b"] = true;
    expect_root(snapshot, top.path(label), label);
  }
  is_done = true;
  flips.join();
}

TEST(LoaderApi, BindsArgumentsAndGeometry) {
  const TestFolder folder;
  const Opened snapshot(folder.path());
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  EXPECT_EQ(binding.state, BindingState::ready);
  EXPECT_EQ(binding.is_identity, 0);
  EXPECT_EQ(binding.has_cluster, 0);
  ASSERT_EQ(binding.arguments.count, 4u);
  const uint16_t wanted[] = {1, 0, 3, 4};
  for (uint32_t i = 0; i < 4; ++i) {
    const ArgumentMap& argument = snapshot.at(binding.arguments, i);
    EXPECT_EQ(argument.kind, ArgumentMap::Kind::pass) << i;
    EXPECT_EQ(argument.param, wanted[i]) << i;
  }
  Launch launch;
  int64_t rows = 0;
  EXPECT_EQ(binding.geometry[kGridX].kind, GeometryMap::Kind::program);
  ASSERT_TRUE(run(snapshot, binding.geometry[kGridX].program, launch, &rows));
  EXPECT_EQ(rows, 5);
  EXPECT_EQ(binding.geometry[kBlockX].kind, GeometryMap::Kind::constant);
  EXPECT_EQ(binding.geometry[kBlockX].constant, 64u);
  EXPECT_EQ(binding.geometry[kClusterX].constant, 1u);
  EXPECT_EQ(binding.geometry[kSharedMem].constant, 0u);
  EXPECT_TRUE(run(snapshot, binding.where, launch));
  launch.x = reinterpret_cast<void*>(0x2008);
  EXPECT_FALSE(run(snapshot, binding.where, launch));
}

TEST(LoaderApi, ComputesWhatCannotBePassed) {
  const TestFolder folder(kPatternPath, "\"rows\": {\"arg\": 3, \"type\": \"int32\"}",
                          "\"rows\": {\"grid\": \"x\"}");
  folder.change(kPatternPath, "{\"arg\": 4, \"type\": \"float32\"}", "{\"value\": 0.5}");
  folder.change(kPatternPath, ", \"factor == 0.1\"", "");
  folder.change(kSolutionPath, "\"block\"",
                "\"cluster\": [2, 1, 1], \"shared_mem\": \"n * 4\", \"block\"");
  const Opened snapshot(folder.path());
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  ASSERT_EQ(binding.state, BindingState::ready);
  const Launch launch;
  int64_t value = 0;
  const ArgumentMap& rows = snapshot.at(binding.arguments, 2);
  EXPECT_EQ(rows.kind, ArgumentMap::Kind::integer);
  EXPECT_EQ(rows.size, 4);
  ASSERT_TRUE(run(snapshot, rows.program, launch, &value));
  EXPECT_EQ(value, 9);
  const ArgumentMap& factor = snapshot.at(binding.arguments, 3);
  EXPECT_EQ(factor.kind, ArgumentMap::Kind::floating);
  EXPECT_EQ(factor.size, 4);
  ASSERT_TRUE(run(snapshot, factor.program, launch, &value));
  EXPECT_EQ(program_detail::bits_double(value), 0.5);
  EXPECT_EQ(binding.geometry[kGridX].kind, GeometryMap::Kind::copy);
  EXPECT_EQ(binding.geometry[kGridX].index, kGridX);
  EXPECT_EQ(binding.has_cluster, 1);
  EXPECT_EQ(binding.geometry[kSharedMem].constant, 256u);
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).max_shared_mem, 256u);
}

// 4 * (n + rows) bytes are added to y, for the solution and whatever compares with it.
TEST(LoaderApi, AddsAShiftToAPointer) {
  const TestFolder folder(kPatternPath, R"("y": {"arg": 0, "dtype": "float32"})",
                          R"_("y": {"arg": 0, "dtype": "float32", "shift": "4 * (n + rows)"})_");
  folder.change(kSolutionPath, R"("rows > 0")", R"("rows > 0", "y == 4096 + 276")");
  const Opened snapshot(folder.path());
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  ASSERT_EQ(binding.state, BindingState::ready);
  EXPECT_EQ(snapshot.at(binding.arguments, 0).kind, ArgumentMap::Kind::pass);
  const ArgumentMap& y = snapshot.at(binding.arguments, 1);
  EXPECT_EQ(y.kind, ArgumentMap::Kind::shifted);
  EXPECT_EQ(y.param, 0);
  EXPECT_EQ(y.offset, 0u);
  EXPECT_EQ(y.size, 8);
  Launch launch;
  int64_t shift = 0;
  ASSERT_TRUE(run(snapshot, y.program, launch, &shift));
  EXPECT_EQ(shift, 276);
  EXPECT_TRUE(run(snapshot, binding.where, launch));
  launch.y = reinterpret_cast<void*>(0x1004);
  EXPECT_FALSE(run(snapshot, binding.where, launch));
  for (uint32_t i = 0; i < binding.tensors.count; ++i) {
    const TensorUse& tensor = snapshot.at(binding.tensors, i);
    const bool is_y = snapshot.text(tensor.name) == std::string("y");
    ASSERT_EQ(tensor.shift.count != 0, is_y);
    if (!is_y) continue;
    ASSERT_TRUE(run(snapshot, tensor.shift, launch, &shift));
    EXPECT_EQ(shift, 276);
  }
  EXPECT_EQ(binding.fast.way, FastWay::computed);
}

// What graphs need to know about a kernel that begins early, or lets the next one begin.
TEST(LoaderApi, KnowsWhatAKernelKeepsAndWhereItIsToldOfTheNext) {
  const TestFolder folder;
  {
    const Opened snapshot(folder.path());
    const Solution& solution = snapshot.at(snapshot->solutions, 0);
    EXPECT_EQ(solution.kept_params, 1u);  // x, not y
    EXPECT_EQ(solution.next_may_begin, 0);
  }
  folder.change(kSolutionPath, R"("factor"])", R"("next_may_begin"], "pdl": true)");
  {
    const Opened snapshot(folder.path());
    EXPECT_EQ(snapshot.at(snapshot->solutions, 0).next_may_begin, 4);
    const Binding& binding = snapshot.at(snapshot->bindings, 0);
    ASSERT_EQ(binding.state, BindingState::ready);
    const ArgumentMap& told = snapshot.at(binding.arguments, 3);
    EXPECT_EQ(told.kind, ArgumentMap::Kind::integer);
    EXPECT_EQ(told.size, 4);
    int64_t value = -1;
    ASSERT_TRUE(run(snapshot, told.program, Launch(), &value));
    EXPECT_EQ(value, 0);
  }
  folder.change(kPatternPath, R"(["y"])", R"(["y", "x"])");
  {
    const Opened snapshot(folder.path());
    EXPECT_EQ(snapshot.at(snapshot->solutions, 0).kept_params, 0u);
  }
  folder.change(kPatternPath, R"(["y", "x"])", R"(["y"])");
  folder.change(kDefinitionPath, R"("y": {)", R"("y": {"param": "x", )");
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).kept_params, 0u);
}

TEST(LoaderApi, KnowsAnIdenticalParameterList) {
  const TestFolder folder(kPatternPath, "[8, 8, 4, 4, 4]", "[8, 8, 4, 4]");
  folder.change(kPatternPath, "\"y\": {\"arg\": 0", "\"y\": {\"arg\": 1");
  folder.change(kPatternPath, "\"x\": {\"arg\": 1", "\"x\": {\"arg\": 0");
  folder.change(kPatternPath, "\"rows\": {\"arg\": 3", "\"rows\": {\"arg\": 2");
  folder.change(kPatternPath, "\"n\": {\"arg\": 2, \"type\": \"int32\"}",
                "\"n\": {\"block\": \"x\"}");
  folder.change(kPatternPath, "\"factor\": {\"arg\": 4", "\"factor\": {\"arg\": 3");
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->bindings, 0).is_identity, 1);
}

TEST(LoaderApi, NamesADefinitionByACapture) {
  const TestFolder folder(kPatternPath, "I(?<T>[a-z])E", "I(?<T>[a-z])Li(?<N>[0-9]+)E");
  folder.change(kPatternPath, "{\"arg\": 2, \"type\": \"int32\"}", "{\"capture\": \"N\"}");
  const Opened snapshot(folder.path());
  const Pattern& pattern = snapshot.at(snapshot->patterns, 0);
  EXPECT_EQ(pattern.capture_count, 1u);
  EXPECT_EQ(pattern.key.count, 0u);
  EXPECT_EQ(snapshot.at(pattern.name, 1).kind, NamePart::Kind::capture);
  EXPECT_EQ(pattern.routes.count, 1u);
  SymbolMatch match;
  ASSERT_EQ(api().match(snapshot.get(), "_Z12engine_scaleIfLi64EvPT_PKT_iif", &match, 1), 1u);
  EXPECT_EQ(match.captures[0].value, 64);
  EXPECT_EQ(match.captures[0].length, 2);
}

// A capture that must be a number does not match a definition's name with a word after the number.
TEST(LoaderApi, NamesNoOtherDefinitionByANumericCapture) {
  const TestFolder folder(kPatternPath, "I(?<T>[a-z])E", "I(?<T>[a-z])Li(?<N>[0-9]+)E");
  folder.change(kPatternPath, "{\"arg\": 2, \"type\": \"int32\"}", "{\"capture\": \"N\"}");
  folder.write("definitions/scale/scale_n64_fp16.json",
               replaced(kDefinition, "scale_n64\"", "scale_n64_fp16\""));
  folder.write("solutions/me/scale_n64_fp16.json",
               replaced(replaced(folder.read(kSolutionPath), "scale_n64\"", "scale_n64_fp16\""),
                        "my-scale", "my-scale-fp16"));
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot->solutions.count, 2u);
  EXPECT_EQ(snapshot.at(snapshot->patterns, 0).routes.count, 1u);
}

TEST(LoaderApi, MatchesFromManyThreads) {
  const TestFolder folder;
  const Opened snapshot(folder.path());
  std::vector<std::thread> threads;
  std::atomic<uint32_t> fitting{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        SymbolMatch match;
        fitting += api().match(snapshot.get(), "_Z12engine_scaleIfEvPT_PKT_iif", &match, 1);
        fitting += api().match(snapshot.get(), "_Z12engine_scaleIfEvPT_PKT_ii", &match, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fitting, 4000u);
}

TEST(LoaderApi, OrdersPatternsByBenefitThenLabel) {
  const TestFolder folder;
  folder.write("patterns/b.json", replaced(kPattern, "\"engine-scale\"", "\"b\""));
  folder.write("patterns/c.json", replaced(replaced(kPattern, "\"engine-scale\"", "\"c\""),
                                           "benefit\": 3,", "benefit\": 30,"));
  folder.write("patterns/d.json",
               replaced(replaced(kPattern, "\"engine-scale\"", "\"a\""), "\"benefit\": 3,", ""));
  const Opened snapshot(folder.path());
  ASSERT_EQ(snapshot->patterns.count, 4u);
  std::string labels;
  for (uint32_t i = 0; i < 4; ++i)
    labels += snapshot.text(snapshot.at(snapshot->patterns, i).label) + " ";
  EXPECT_EQ(labels, "c b engine-scale a ");
  SymbolMatch matches[4];
  ASSERT_EQ(api().match(snapshot.get(), "_Z12engine_scaleIfEvPT_PKT_iif", matches, 4), 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(matches[i].pattern, i);
}

TEST(LoaderApi, SortsRoutesByDefinition) {
  const TestFolder folder;
  for (const char* n : {"8", "128", "9"}) folder.add_size(n);
  const Opened snapshot(folder.path());
  const Pattern& pattern = snapshot.at(snapshot->patterns, 0);
  std::string names;
  for (uint32_t i = 0; i < pattern.routes.count; ++i) {
    const Route& route = snapshot.at(pattern.routes, i);
    names += snapshot.text(route.definition) + " ";
    const Binding& binding = snapshot.at(snapshot->bindings, route.binding);
    EXPECT_EQ(snapshot.text(snapshot.at(snapshot->solutions, binding.solution).definition),
              snapshot.text(route.definition));
  }
  EXPECT_EQ(names, "scale_n128 scale_n64 scale_n8 scale_n9 ");
}

TEST(LoaderApi, RejectsAnInvalidFolderWithItsFirstError) {
  const TestFolder folder(kPatternPath, "\"where\"", "\"wher\"");
  folder.change(kPatternPath, "\"benefit\"", "\"benfit\"");
  const Opened snapshot(folder.path(), false);
  EXPECT_EQ(snapshot.message().substr(0, folder.path(kPatternPath).size() + 43),
            folder.path(kPatternPath) + ":3:3: error: unknown key \"benfit\" in a patt");
  EXPECT_CONTAINS(snapshot.message(), "[unknown-key] (and 1 more)");
}

TEST(LoaderApi, CutsAMessageToFit) {
  const TestFolder folder(kPatternPath, "\"where\"", "\"\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\"");
  for (size_t size = 0; size < 200; ++size) {
    std::vector<char> message(size + 1, 'x');
    EXPECT_EQ(api().open(folder.path().c_str(), {}, message.data(), size), nullptr);
    EXPECT_EQ(message[size], 'x');
    if (size == 0) continue;
    const size_t length = strnlen(message.data(), size);
    ASSERT_LT(length, size);
    EXPECT_TRUE(length == 0 || static_cast<uint8_t>(message[length - 1]) != 0xc3);
  }
  EXPECT_EQ(api().open(nullptr, {}, nullptr, 0), nullptr);
}

TEST(LoaderApi, ABrokenSolutionOpensWithItsReason) {
  const TestFolder folder;
  folder.remove(kImagePath);
  const Opened snapshot(folder.path());
  EXPECT_CONTAINS(snapshot.message(), "scale_n64.json:9:16: error: image \"scale.sm_90.cubin\"");
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).error_code, 301);
  EXPECT_EQ(snapshot.at(snapshot->bindings, 0).state, BindingState::broken);
}

struct BrokenCase {
  const char* from;
  const char* to;
  int32_t code;
};

TEST(LoaderApi, GivesEveryKindOfBreakageItsCudaError) {
  for (const BrokenCase& row : {BrokenCase{"\"kernel\": \"scale\"", "\"kernel\": \"skale\"", 500},
                                BrokenCase{"\"rows\", \"factor\"]", "\"rows\"]", 1},
                                BrokenCase{"scale.sm_80.cubin", "scale.sm_70.cubin", 301}}) {
    const TestFolder folder(kSolutionPath, row.from, row.to);
    const Opened snapshot(folder.path());
    EXPECT_EQ(snapshot.at(snapshot->solutions, 0).error_code, row.code) << snapshot.message();
    EXPECT_NE(snapshot.message(), "");
  }
}

TEST(LoaderApi, TakesFatbinsAndPtx) {
  const TestFolder folder;
  folder.write("solutions/me/scale.fatbin", test_image("compressed.fatbin"));
  folder.write("solutions/me/scale.ptx", test_image("ptx"));
  const std::string fatbin_hash = sha256_hex(sha256(test_image("compressed.fatbin")));
  const std::string ptx_hash = sha256_hex(sha256(test_image("ptx")));
  folder.write_solution(replaced(kSolution, R"({"path": "scale.sm_80.cubin", "sha256": "@80@"})",
                                 R"({"path": "scale.ptx", "sha256": ")" + ptx_hash + R"("},
         {"path": "scale.fatbin", "sha256": ")" +
                                     fatbin_hash + R"("})"));
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.message(), "");
  const Solution& solution = snapshot.at(snapshot->solutions, 0);
  ASSERT_EQ(solution.images.count, 3u);
  EXPECT_EQ(snapshot.at(solution.images, 0).kind, ImageKind::cubin);
  EXPECT_EQ(snapshot.at(solution.images, 1).kind, ImageKind::fatbin);
  EXPECT_EQ(snapshot.at(solution.images, 2).kind, ImageKind::ptx);
  EXPECT_EQ(snapshot.at(solution.images, 2).sm, 90);
}

// Gives the valid solution only PTX.
void use_ptx(const TestFolder& folder) {
  folder.write("solutions/me/scale.ptx", test_image("ptx"));
  const std::string hash = sha256_hex(sha256(test_image("ptx")));
  std::string solution = kSolution;
  const size_t begin = solution.find("      {\"path\"");
  const size_t end = solution.find("    ],");
  solution.replace(begin, end - begin, R"({"path": "scale.ptx", "sha256": ")" + hash + "\"}\n");
  folder.write_solution(solution);
}

TEST(LoaderApi, CountsTheParametersOfPtx) {
  const TestFolder folder;
  use_ptx(folder);
  folder.change(kSolutionPath, "\"rows\", \"factor\"]", "\"rows\"]");
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).error_code, 1);
  EXPECT_CONTAINS(snapshot.message(), "takes 4 parameters, \"arguments\" has 3");
}

TEST(LoaderApi, WithoutAParameterTableIntegersTravelInEightBytes) {
  const TestFolder folder;
  use_ptx(folder);
  folder.change(kPatternPath, "\"rows\": {\"arg\": 3, \"type\": \"int32\"}",
                "\"rows\": {\"grid\": \"x\"}");
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).param_sizes.count, 0u);
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  EXPECT_EQ(snapshot.at(binding.arguments, 0).kind, ArgumentMap::Kind::pass);
  EXPECT_EQ(snapshot.at(binding.arguments, 2).size, 8);
}

TEST(LoaderApi, ReadsImagesWhoseHashStillHolds) {
  const TestFolder folder;
  const Opened snapshot(folder.path());
  char message[256];
  ImageBytes bytes;
  ASSERT_EQ(api().read_image(snapshot.get(), 0, 0, &bytes, message, sizeof message), 0) << message;
  EXPECT_EQ(std::string(static_cast<const char*>(bytes.data), bytes.size),
            test_image("sm_90.cubin"));
  api().release_image(&bytes);
  EXPECT_EQ(bytes.data, nullptr);

  folder.write(kImagePath, test_image("sm_100.cubin"));
  EXPECT_EQ(api().read_image(snapshot.get(), 0, 0, &bytes, message, sizeof message), 200);
  EXPECT_CONTAINS(std::string(message), "SHA-256");
  EXPECT_EQ(bytes.data, nullptr);
  folder.remove(kImagePath);
  EXPECT_EQ(api().read_image(snapshot.get(), 0, 0, &bytes, message, sizeof message), 301);
  EXPECT_EQ(api().read_image(snapshot.get(), 0, 2, &bytes, message, sizeof message), 1);
  EXPECT_EQ(api().read_image(snapshot.get(), 1, 0, &bytes, message, sizeof message), 1);
}

TEST(LoaderApi, HashesAsXxhsumPrintsIt) {
  ImageHashes hashes;
  api().identify_image("", 0, &hashes);
  EXPECT_EQ(hashes.file, (ImageHash{0x6001c324468d497fu, 0x99aa06d3014798d8u}));
  EXPECT_EQ(hashes.code, ImageHash{});
  const TestFolder folder(kPatternPath, "\"params\":",
                          "\"image\": [\"xxh128:99aa06d3014798d86001c324468d497f\"], \"params\":");
  const Opened snapshot(folder.path());
  const Pattern& pattern = snapshot.at(snapshot->patterns, 0);
  EXPECT_EQ(snapshot.at(pattern.images, 0).high, hashes.file.high);
  EXPECT_EQ(snapshot.at(pattern.images, 0).low, hashes.file.low);
}

TEST(Snapshot, OfOneFolderIsOneSequenceOfBytes) {
  const TestFolder folder;
  folder.write("patterns/b.json", replaced(kPattern, "\"engine-scale\"", "\"b\""));
  const Opened first(folder.path());
  const Opened second(folder.path());
  ASSERT_EQ(first->size_bytes, second->size_bytes);
  EXPECT_EQ(memcmp(first.get(), second.get(), first->size_bytes), 0);
}

TEST(Snapshot, CanBeCopiedElsewhere) {
  const TestFolder folder;
  std::vector<uint64_t> copy;
  {
    const Opened snapshot(folder.path());
    copy.resize(snapshot->size_bytes / 8 + 1);
    memcpy(copy.data(), snapshot.get(), snapshot->size_bytes);
  }
  const auto* const snapshot = reinterpret_cast<const Snapshot*>(copy.data());
  EXPECT_STREQ(snapshot->text(snapshot->begin(snapshot->patterns)->label), "engine-scale");
}

TEST(Snapshot, DigestChangesWithEveryFile) {
  const TestFolder folder;
  const auto digest = [&] {
    const Opened snapshot(folder.path());
    return std::pair(snapshot->digest[0], snapshot->digest[1]);
  };
  const auto sound = digest();
  EXPECT_EQ(digest(), sound);
  folder.change(kDefinitionPath, "x * 2", "x * 3");
  const auto changed = digest();
  EXPECT_NE(changed, sound);
  folder.write("fibshim.json", "{}");
  const auto with_settings = digest();
  EXPECT_NE(with_settings, changed);
  folder.write(kOtherImagePath, test_image("sm_80.cubin") + "x");  // broken, but different
  EXPECT_NE(digest(), with_settings);
}

// What shadow checks must know about a launch's pointers.
struct Extent {
  bool is_known;
  bool is_written;
  std::vector<std::pair<int64_t, int64_t>> axes;  // count, stride
  bool operator==(const Extent&) const = default;
};

std::map<std::string, Extent> extents_of(const Opened& snapshot) {
  std::map<std::string, Extent> out;
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  for (uint32_t i = 0; i < binding.tensors.count; ++i) {
    const TensorUse& tensor = snapshot.at(binding.tensors, i);
    Extent& extent = out[snapshot.text(tensor.name)];
    extent.is_known = tensor.has_extent != 0;
    extent.is_written = tensor.is_written != 0;
    EXPECT_EQ(tensor.element, ElementKind::float32);
    for (uint32_t k = 0; k < tensor.axes.count; ++k) {
      const TensorAxis& axis = snapshot.at(tensor.axes, k);
      int64_t count = 0, stride = 0;
      EXPECT_TRUE(run(snapshot, axis.count, Launch(), &count));
      EXPECT_TRUE(run(snapshot, axis.stride, Launch(), &stride));
      extent.axes.emplace_back(count, stride);
    }
  }
  return out;
}

TEST(Tensors, AreDenseWithTheDefinitionsShape) {
  const TestFolder folder;
  const Opened snapshot(folder.path());
  EXPECT_EQ(extents_of(snapshot), (std::map<std::string, Extent>{{"x", {true, false, {{320, 1}}}},
                                                                 {"y", {true, true, {{320, 1}}}}}));
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  ASSERT_EQ(binding.axes.count, 1u);
  EXPECT_EQ(snapshot.text(snapshot.at(binding.axes, 0).name), "rows");
}

TEST(Tensors, HaveTheLayoutThatThePatternSays) {
  const TestFolder folder;
  folder.write(
      kPatternPath,
      replaced(kPattern, R"("y": {"arg": 0, "dtype": "float32"})",
               R"("y": {"arg": 0, "dtype": "float32", "layout": [["rows", "2 * n"], ["n", 1]]})"));
  const Opened snapshot(folder.path());
  EXPECT_EQ(extents_of(snapshot)["y"], (Extent{true, true, {{5, 128}, {64, 1}}}));
}

// Without a layout, the meaning of a stride is unknown.
TEST(Tensors, AreUnknownBesideAStrideThatNothingPins) {
  const auto is_known = [](const std::string& where) {
    const TestFolder folder;
    folder.write(kPatternPath, replaced(replaced(kPattern, R"("rows": {"arg": 3, "type": "int32"})",
                                                 R"("rows": {"grid": "x"},
    "row_stride": {"arg": 3, "type": "int32"})"),
                                        R"("factor == 0.1")", where));
    const Opened snapshot(folder.path());
    return extents_of(snapshot)["y"].is_known;
  };
  EXPECT_FALSE(is_known(R"("factor == 0.1")"));
  EXPECT_TRUE(is_known(R"("factor == 0.1", "row_stride == 64")"));
}

// Softmax has the same op_type.
TEST(Tensors, OfSamplesAreNotCompared) {
  const TestFolder folder;
  const auto count = [&](const std::string& dtype) {
    const std::string definition =
        replaced(kDefinition, R"("op_type": "scale")", R"("op_type": "sampling")");
    folder.write(kDefinitionPath,
                 replaced(definition, R"("y": {"shape": ["rows", "n"], "dtype": "float32"})",
                          R"("y": {"shape": ["rows", "n"], "dtype": ")" + dtype + R"("})"));
    folder.write(kPatternPath, replaced(kPattern, R"("y": {"arg": 0, "dtype": "float32"})",
                                        R"("y": {"arg": 0, "dtype": ")" + dtype + R"("})"));
    const Opened snapshot(folder.path());
    EXPECT_EQ(snapshot.at(snapshot->bindings, 0).state, BindingState::ready);
    return snapshot.at(snapshot->bindings, 0).tensors.count;
  };
  EXPECT_EQ(count("int32"), 0u);
  EXPECT_EQ(count("float32"), 2u);
}

TEST(Tensors, OfAnOrderThatIsLeftOpenAreNotCompared) {
  const TestFolder folder;
  folder.write(kDefinitionPath, replaced(kDefinition, R"("op_type": "scale")",
                                         R"("op_type": "scale", "tags": ["fused", "order:any"])"));
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->bindings, 0).state, BindingState::ready);
  EXPECT_EQ(snapshot.at(snapshot->bindings, 0).tensors.count, 0u);
}

TEST(Tensors, OneOutputsOrderMayBeLeftOpen) {
  const TestFolder folder;
  folder.write(kDefinitionPath,
               replaced(kDefinition, R"("op_type": "scale")",
                        R"("op_type": "scale", "tags": ["fused", "order:any:y"])"));
  const Opened snapshot(folder.path());
  const Binding& binding = snapshot.at(snapshot->bindings, 0);
  ASSERT_EQ(binding.tensors.count, 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const TensorUse& tensor = snapshot.at(binding.tensors, i);
    EXPECT_EQ(tensor.may_vary != 0, snapshot.text(tensor.name) == "y");
  }
}

TEST(Tensors, HaveTheTolerancesOfTheSolutionsVerify) {
  const TestFolder folder;
  {
    const Opened snapshot(folder.path());
    EXPECT_LT(snapshot.at(snapshot->solutions, 0).atol, 0);
    EXPECT_EQ(snapshot.at(snapshot->solutions, 0).matched_ratio, 1);
  }
  folder.write_solution(replaced(
      kSolution, R"("author": "me",)",
      R"("author": "me", "verify": {"atol": 0.5, "rtol": 2, "required_matched_ratio": 0.75},)"));
  const Opened snapshot(folder.path());
  const Solution& solution = snapshot.at(snapshot->solutions, 0);
  EXPECT_EQ(solution.atol, 0.5);
  EXPECT_EQ(solution.rtol, 2);
  EXPECT_EQ(solution.matched_ratio, 0.75);
}

TEST(Settings, ShadowAndMismatchAreOfSingleDefinitionsToo) {
  const TestFolder folder;
  folder.write(
      "fibshim.json",
      R"({"shadow": "1/1000", "definitions": {"scale_*": {"shadow": "1/7", "on_mismatch": "quarantine"}}})");
  const Opened snapshot(folder.path());
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).shadow_interval, 7u);
  EXPECT_EQ(snapshot.at(snapshot->solutions, 0).on_mismatch, OnMismatch::quarantine);
  EXPECT_EQ(snapshot.text(snapshot.at(snapshot->settings, 0).value), "1/1000");
}

}  // namespace
}  // namespace fibshim
