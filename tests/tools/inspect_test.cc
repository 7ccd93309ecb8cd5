// fibshim inspect: the contents of images compiled from data/kernels.cu, and other files.

#include <string.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

std::string image(const std::string& name) { return build_path("tests/data/" + name); }

nlohmann::json inspect_json(const std::string& path) {
  const ProgramResult result = exits(0, run_fibshim({"inspect", "--json", path}));
  return parse_json(result.out)["files"][0];
}

// The parameters of `scale(float*, const float*, int, char)`.
const nlohmann::json kScaleParams = {{{"ordinal", 0}, {"offset", 0}, {"size", 8}},
                                     {{"ordinal", 1}, {"offset", 8}, {"size", 8}},
                                     {{"ordinal", 2}, {"offset", 16}, {"size", 4}},
                                     {{"ordinal", 3}, {"offset", 20}, {"size", 1}}};

TEST(Inspect, TellsACubinsKernels) {
  const std::string path = image("kernels.sm_90.cubin");
  const auto file = inspect_json(path);
  EXPECT_EQ(file["path"], path);
  EXPECT_EQ(file["bytes"], std::filesystem::file_size(path));
  EXPECT_EQ(file["sha256"], run_program({"sha256sum", path}).out.substr(0, 64));
  // The hash for a pattern's `image`.
  const std::string hash = file["image"];
  EXPECT_EQ(hash.substr(0, 7), "xxh128:");
  EXPECT_EQ(hash.size(), 7u + 32);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef", 7), std::string::npos) << hash;
  EXPECT_EQ(file["format"], "cubin");
  EXPECT_EQ(file["arch"], "sm_90");
  ASSERT_EQ(file["kernels"].size(), 2u);
  const auto& nothing = file["kernels"][0];
  EXPECT_EQ(nothing["name"], "_ZN4idle7nothingEv");
  EXPECT_EQ(nothing["demangled"], "idle::nothing()");
  EXPECT_EQ(nothing["params"], nlohmann::json::array());
  EXPECT_EQ(nothing["max_threads"], nullptr);
  const auto& scale = file["kernels"][1];
  EXPECT_EQ(scale["name"], "scale");
  EXPECT_EQ(scale["demangled"], nullptr);
  EXPECT_EQ(scale["params"], kScaleParams);
  EXPECT_EQ(scale["param_bytes"], 21);
  EXPECT_EQ(scale["max_threads"], 256);
  EXPECT_EQ(scale["static_shared_bytes"], 256 + 1024);  // sm_90 reserves 1 KB
  EXPECT_GT(scale["registers"], 0);
  EXPECT_EQ(scale["required_cluster"], nullptr);
}

TEST(Inspect, PrintsTextForPeople) {
  const std::string path = image("kernels.sm_90.cubin");
  const ProgramResult result = exits(0, run_fibshim({"inspect", path}));
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.rfind(path + ": ", 0), 0u) << result.out;
  EXPECT_CONTAINS(result.out, "\n  cubin for sm_90, ABI: ");
  EXPECT_CONTAINS(result.out, "    kernel _ZN4idle7nothingEv\n      idle::nothing()\n");
  EXPECT_CONTAINS(result.out,
                  "      at most 256 threads\n"
                  "      4 parameters, 21 bytes\n"
                  "        ORDINAL  OFFSET  SIZE\n"
                  "              0     0x0     8\n"
                  "              1     0x8     8\n"
                  "              2    0x10     4\n"
                  "              3    0x14     1\n");
}

TEST(Inspect, TellsAFatbinsImages) {
  const auto file = inspect_json(image("kernels.fatbin"));
  EXPECT_EQ(file["format"], "fatbin");
  ASSERT_EQ(file["entries"].size(), 3u);
  std::map<std::string, nlohmann::json> entries;
  for (const auto& entry : file["entries"]) {
    entries[entry["kind"].get<std::string>() + std::to_string(entry["sm"].get<int>())] = entry;
  }
  EXPECT_EQ(entries["cubin80"]["image"]["arch"], "sm_80");
  EXPECT_EQ(entries["cubin80"]["image"]["kernels"][1]["params"], kScaleParams);
  EXPECT_EQ(entries["cubin90"]["image"]["arch"], "sm_90");
  EXPECT_EQ(entries["ptx90"]["image"]["format"], "ptx");
  const std::string text = run_fibshim({"inspect", image("kernels.fatbin")}).out;
  EXPECT_CONTAINS(text, "  fatbin of 3 images\n");
}

// The unpacked images are, byte for byte, those of the fatbin that nvcc did not compress.
void expect_same_cubins(const nlohmann::json& packed, const std::string& compression) {
  const auto plain = inspect_json(image("kernels.fatbin"));
  ASSERT_EQ(packed["entries"].size(), plain["entries"].size());
  for (size_t i = 0; i < plain["entries"].size(); ++i) {
    const auto& entry = packed["entries"][i];
    const auto& expected = plain["entries"][i];
    EXPECT_EQ(entry["compression"], compression);
    EXPECT_LT(entry["stored_bytes"], entry["raw_bytes"]);
    EXPECT_EQ(entry["image"], expected["image"]);
    if (entry["kind"] == "cubin") {
      EXPECT_EQ(entry["sha256"], expected["sha256"]);
    }
  }
}

TEST(Inspect, UnpacksZstd) {
  expect_same_cubins(inspect_json(image("kernels.compressed.fatbin")), "zstd");
  EXPECT_CONTAINS(run_fibshim({"inspect", image("kernels.compressed.fatbin")}).out,
                  " (zstd compressed to ");
}

TEST(Inspect, UnpacksLz4) { expect_same_cubins(inspect_json(image("kernels.lz4.fatbin")), "lz4"); }

TEST(Inspect, SaysWhenCompressedBytesAreDamaged) {
  TemporaryFolder folder;
  for (const char* name : {"kernels.compressed.fatbin", "kernels.lz4.fatbin"}) {
    std::string bytes = read_text(image(name));
    bytes[16 + 64 + 200] ^= 0x55;  // the region's header, the first entry's, and some way in
    bytes.replace(16 + 64 + 300, 100, std::string(100, '\xff'));
    write_text(folder / "damaged", bytes);
    const ProgramResult result = run_fibshim({"inspect", folder / "damaged"});
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_CONTAINS(result.err, "entry 0 (sm_80): ");
    // A size larger than any memory.
    bytes = read_text(image(name));
    bytes.replace(16 + 56, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
    write_text(folder / "huge", bytes);
    EXPECT_CONTAINS(run_fibshim({"inspect", folder / "huge"}).err, "claims to unpack to");
  }
}

TEST(Inspect, ReadsTheOtherImagesWhereOneIsDamaged) {
  TemporaryFolder folder;
  std::string bytes = read_text(image("kernels.so"));
  const auto good = inspect_json(image("kernels.so"))["fatbins"][0]["entries"];
  const size_t region = bytes.find("\x50\xed\x55\xba");
  uint32_t header_bytes = 0;
  memcpy(&header_bytes, bytes.data() + region + 16 + 4, sizeof header_bytes);
  bytes[region + 16 + header_bytes + 1] ^= 0x55;  // of the magic number
  write_text(folder / "damaged.so", bytes);
  const ProgramResult result = run_fibshim({"inspect", "--json", folder / "damaged.so"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.rfind("fibshim inspect: " + (folder / "damaged.so") +
                                 ": section .nv_fatbin: fatbin 0: entry 0 (sm_90): ",
                             0),
            0u)
      << result.err;
  const auto file = parse_json(result.out)["files"][0];
  EXPECT_EQ(file["problems"].size(), 1u);
  const auto& entries = file["fatbins"][0]["entries"];
  EXPECT_EQ(entries[0]["image"], nullptr);
  EXPECT_NE(entries[0]["problem"], nullptr);
  ASSERT_EQ(entries.size(), good.size());
  for (size_t i = 1; i < good.size(); ++i) EXPECT_EQ(entries[i], good[i]);
  EXPECT_NE(run_fibshim({"inspect", folder / "damaged.so"}).out.find("    not read: "),
            std::string::npos);
}

// cuBLASLt and cuDNN contain fatbins among other data, and cubins packed outside of these.
TEST(Inspect, ReadsTheSectionsOfCublasLt) {
  TemporaryFolder folder;
  const std::string packed = read_text(image("kernels.compressed.fatbin"));
  uint32_t header_bytes = 0;
  uint32_t stored_bytes = 0;
  memcpy(&header_bytes, packed.data() + 16 + 4, sizeof header_bytes);
  memcpy(&stored_bytes, packed.data() + 16 + 16, sizeof stored_bytes);
  const std::string frame = packed.substr(16 + header_bytes, stored_bytes);
  const std::string noise = "\x28\xb5\x2f\xfd, and no frame ";
  write_text(folder / "cask", noise + read_text(image("kernels.fatbin")) + noise);
  write_text(folder / "ldata", noise + frame + noise + frame + frame.substr(0, frame.size() / 2));
  ASSERT_EQ(run_program({"objcopy", "--add-section", ".cask_resource=" + (folder / "cask"),
                         "--add-section", ".ldata=" + (folder / "ldata"),
                         build_path("lib/libfibshim.so"), folder / "library.so"})
                .exit_code,
            0);
  const auto file = inspect_json(folder / "library.so");
  const auto plain = inspect_json(image("kernels.fatbin"));
  ASSERT_EQ(file["fatbins"].size(), 1u);
  EXPECT_EQ(file["fatbins"][0]["entries"], plain["entries"]);
  ASSERT_EQ(file["cubins"].size(), 2u);
  EXPECT_EQ(file["cubins"][0]["kernels"], plain["entries"][0]["image"]["kernels"]);
  EXPECT_EQ(file["cubins"][0], file["cubins"][1]);
}

TEST(Inspect, ShowsOnlyTheWantedKernels) {
  for (const char* glob : {"_ZN4idle*", "idle::*"}) {
    const ProgramResult result =
        exits(0, run_fibshim({"inspect", "--json", "--kernel", glob, image("kernels.fatbin")}));
    const auto file = parse_json(result.out)["files"][0];
    ASSERT_EQ(file["entries"].size(), 3u);
    for (const auto& entry : file["entries"]) {
      ASSERT_EQ(entry["image"]["kernels"].size(), 1u);
      EXPECT_EQ(entry["image"]["kernels"][0]["name"], "_ZN4idle7nothingEv");
    }
  }
  // A pattern's symbol must fit the whole mangled name, or the whole readable one.
  for (const auto& [symbol, count] : std::map<std::string, size_t>{
           {"re:_ZN(?i:4IDLE).*", 1}, {"re:idle.*", 0}, {"demangled:idle::*", 1}, {"glob:s*", 1}}) {
    const auto file = parse_json(exits(0, run_fibshim({"inspect", "--json", "--kernel", symbol,
                                                       image("kernels.sm_90.cubin")}))
                                     .out)["files"][0];
    EXPECT_EQ(file["kernels"].size(), count) << symbol;
    EXPECT_EQ(file["kernels_in_all"], 2);
  }
  const ProgramResult bad = run_fibshim({"inspect", "--kernel", "re:(", image("kernels.fatbin")});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_CONTAINS(bad.err, "--kernel: re:(: the regular expression: ");
  const auto none =
      parse_json(run_fibshim({"inspect", "--json", "--kernel", "absent", image("kernels.so")}).out);
  EXPECT_EQ(none["files"][0]["fatbins"], nlohmann::json::array());
}

// The hash is the one that the shim computes for an image in a library: over its region alone.
TEST(Inspect, GivesEachFatbinOfALibraryItsHash) {
  const auto library = inspect_json(image("kernels.so"));
  const std::string bytes = read_text(image("kernels.so"));
  const size_t at = bytes.find("\x50\xed\x55\xba");
  ASSERT_NE(at, std::string::npos);
  uint64_t region_bytes = 0;
  memcpy(&region_bytes, bytes.data() + at + 8, sizeof region_bytes);
  TemporaryFolder folder;
  write_text(folder / "region.fatbin", bytes.substr(at, 16 + region_bytes));
  EXPECT_EQ(library["fatbins"][0]["image"], inspect_json(folder / "region.fatbin")["image"]);
}

// ---- processes

TEST(InspectProcess, TellsShimSettingsAndCounters) {
  TemporaryFolder folder;
  write_config_folder(folder / "config");
  LiveProgram engine({build_path("tests/hosts/engine"), "--launches=6", "--pause-after=3"},
                     under_shim(folder / "config", folder / "stats"));
  ASSERT_TRUE(engine.read_until("paused\n")) << engine.text();
  const std::string pid = std::to_string(engine.pid());
  const ProgramResult result = exits(0, run_fibshim({"inspect", "--json", "--pid", pid}));
  const auto process = parse_json(result.out)["processes"][0];
  EXPECT_EQ(process["shim"], std::filesystem::canonical(build_path("lib/libfibshim.so")).string());
  EXPECT_EQ(process["why_not"], nullptr);
  EXPECT_EQ(process["environment"]["FIBSHIM_CONFIG"], folder / "config");
  ASSERT_EQ(process["counters"].size(), 1u) << process;
  EXPECT_EQ(process["counters"][0]["config"][0]["path"], folder / "config");
  EXPECT_EQ(process["counters"][0]["totals"]["untracked"], 3) << process;
  const std::string text = run_fibshim({"inspect", "--pid", pid}).out;
  EXPECT_EQ(text.rfind("pid " + pid + ": ", 0), 0u) << text;
  EXPECT_CONTAINS(text, "\n    untracked                        3\n");
}

TEST(InspectProcess, TellsOfAProcessWhoseFolderWasRefused) {
  TemporaryFolder folder;
  copy_demo_folders(folder.path());
  LiveProgram engine({build_path("tests/hosts/engine"), "--launches=6", "--pause-after=3"},
                     under_shim(folder / "bad", folder / "stats"));
  ASSERT_TRUE(engine.read_until("paused\n")) << engine.text();
  const std::string text =
      exits(0, run_fibshim({"inspect", "--pid", std::to_string(engine.pid())})).out;
  EXPECT_CONTAINS(text, "  now in  no folder; 0 moves\n");
}

TEST(InspectProcess, SaysWhyAProcessHasNoShim) {
  EXPECT_CONTAINS(exits(0, run_fibshim({"inspect", "--pid", std::to_string(getpid())})).out,
                  "not loaded: LD_PRELOAD in its environment does not name the shim");
}

TEST(InspectProcess, SaysWhenThereIsNone) {
  const ProgramResult result = exits(1, run_fibshim({"inspect", "--json", "--pid", "4194399"}));
  EXPECT_EQ(result.err, "fibshim inspect: process 4194399: there is none\n");
  EXPECT_EQ(parse_json(result.out)["processes"], nlohmann::json::array());
}

TEST(Inspect, TellsAPtxFilesHead) {
  const auto file = inspect_json(image("kernels.ptx"));
  EXPECT_EQ(file["format"], "ptx");
  EXPECT_EQ(file["arch"], "sm_90");
  std::set<std::string> names;
  for (const auto& kernel : file["kernels"]) names.insert(kernel["name"]);
  EXPECT_EQ(names, (std::set<std::string>{"scale", "_ZN4idle7nothingEv"}));
}

TEST(Inspect, TellsAHostLibrarysNeedsAndGpuCode) {
  const auto shim = inspect_json(build_path("lib/libfibshim.so"));
  EXPECT_EQ(shim["format"], "elf");
  EXPECT_EQ(shim["soname"], "libfibshim.so");
  EXPECT_EQ(shim["fatbins"], nlohmann::json::array());
  EXPECT_GT(shim["exported_symbols"], 0);
  const auto library = inspect_json(image("kernels.so"));
  EXPECT_EQ(library["format"], "elf");
  ASSERT_EQ(library["fatbins"].size(), 1u);
  std::set<std::string> kernels;
  for (const auto& entry : library["fatbins"][0]["entries"]) {
    if (entry["kind"] != "cubin") continue;
    for (const auto& kernel : entry["image"]["kernels"]) kernels.insert(kernel["name"]);
  }
  EXPECT_EQ(kernels, (std::set<std::string>{"scale", "_ZN4idle7nothingEv"}));
  EXPECT_CONTAINS(run_fibshim({"inspect", build_path("lib/libfibshim.so")}).out, "  no GPU code\n");
}

TEST(Inspect, ShowsTheOtherFilesWhenOneIsBad) {
  TemporaryFolder folder;
  write_text(folder / "text", "hello\n");
  const ProgramResult result = exits(1, run_fibshim({"inspect", "--json", folder / "text",
                                                     folder / "absent", image("kernels.ptx")}));
  EXPECT_CONTAINS(result.err, "fibshim inspect: " + (folder / "text") + ": neither a cubin");
  EXPECT_CONTAINS(result.err, folder / "absent");
  EXPECT_EQ(parse_json(result.out)["files"].size(), 1u);
}

TEST(Inspect, RefusesWhatIsNoFile) {
  TemporaryFolder folder;
  write_text(folder / "empty", "");
  EXPECT_EQ(run_fibshim({"inspect", folder / "empty"}).exit_code, 1);
  EXPECT_EQ(run_fibshim({"inspect", folder.path()}).exit_code, 1);
  EXPECT_EQ(run_fibshim({"inspect", "/dev/zero"}).exit_code, 1);
  EXPECT_EQ(run_fibshim({"inspect"}).exit_code, 2);
}

// Truncated files (in large steps) and changed bytes give an error or data, never a signal.
TEST(Inspect, SurvivesDamagedFiles) {
  TemporaryFolder folder;
  for (const char* name : {"kernels.sm_90.cubin", "kernels.fatbin", "kernels.ptx", "kernels.so"}) {
    const std::string good = read_text(image(name));
    std::vector<std::string> command = {"inspect"};
    for (size_t i = 0; i < 40; ++i) {
      const std::string cut = folder / ("cut" + std::to_string(i));
      write_text(cut, good.substr(0, i < 20 ? i * 7 : good.size() * i / 41));
      command.push_back(cut);
      std::string changed = good;
      for (size_t at = i; at < changed.size(); at += 41) changed[at] = static_cast<char>(0xff);
      write_text(folder / ("changed" + std::to_string(i)), changed);
      command.push_back(folder / ("changed" + std::to_string(i)));
    }
    const ProgramResult result = run_fibshim(command);
    EXPECT_LE(result.exit_code, 1) << name << ": " << result.err;
  }
}

// Many entries, enough to unpack in several threads: each gives the same as alone, in order.
TEST(Inspect, ReadsManyImagesAsItReadsOne) {
  TemporaryFolder folder;
  const std::string one = read_text(image("kernels.compressed.fatbin"));
  uint64_t unpacked = 0;
  const auto alone = inspect_json(image("kernels.compressed.fatbin"));
  for (const auto& entry : alone["entries"]) unpacked += entry["raw_bytes"].get<uint64_t>();
  std::string many;
  const size_t count = (size_t{17} << 20) / unpacked + 1;
  for (size_t i = 0; i < count; ++i) many += one;
  write_text(folder / "many.fatbin", many);
  const auto file = inspect_json(folder / "many.fatbin");
  ASSERT_EQ(file["entries"].size(), count * alone["entries"].size());
  for (size_t i = 0; i < file["entries"].size(); ++i) {
    ASSERT_EQ(file["entries"][i], alone["entries"][i % alone["entries"].size()]) << i;
  }
}

TEST(Inspect, TellsALibraryWithoutSuchAKernelFromOneWithoutGpuCode) {
  const std::string library = build_path("tests/data/kernels.so");
  const std::string out = run_fibshim({"inspect", "--kernel", "absent", library}).out;
  EXPECT_CONTAINS(out, "  no kernel of such a name\n");
  EXPECT_LACKS(out, "no GPU code");
}

}  // namespace
}  // namespace fibshim::test
