// A config folder that lives as long as one test. At first it is valid: one definition, one
// solution with two images, one pattern. Tests change the part that they test.
#pragma once

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "loader/read/sha256.h"

namespace fibshim {

// Returns an image made by loader_tests.mk: "sm_90.cubin", "ptx", ...
inline std::string test_image(const std::string& name) {
  std::ifstream file(std::string(LOADER_TEST_DATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Replaces the only occurrence of `from`.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "nothing to replace: " << from;
  if (at == std::string::npos) return text;
  EXPECT_EQ(text.find(from, at + 1), std::string::npos) << "ambiguous: " << from;
  return text.replace(at, from.size(), to);
}

// Gives the file to a group that others may be in, and sets the mode. Only root can do this.
inline void share(const std::string& path, mode_t mode) {
  EXPECT_EQ(chown(path.c_str(), static_cast<uid_t>(-1), 54321), 0) << path;
  EXPECT_EQ(chmod(path.c_str(), mode), 0) << path;
}

inline constexpr char kDefinitionPath[] = "definitions/scale/scale_n64.json";
inline constexpr char kSolutionPath[] = "solutions/me/scale_n64.json";
inline constexpr char kPatternPath[] = "patterns/engine-scale.json";
inline constexpr char kImagePath[] = "solutions/me/scale.sm_90.cubin";
inline constexpr char kOtherImagePath[] = "solutions/me/scale.sm_80.cubin";

inline constexpr char kDefinition[] = R"({
  "name": "scale_n64",
  "op_type": "scale",
  "axes": {
    "n": {"type": "const", "value": 64},
    "rows": {"type": "var"}
  },
  "inputs": {
    "x": {"shape": ["rows", "n"], "dtype": "float32"}
  },
  "outputs": {
    "y": {"shape": ["rows", "n"], "dtype": "float32"}
  },
  "reference": "def run(x):\n    return x * 2"
}
)";

// write_solution() replaces @90@ and @80@ by the images' SHA-256.
inline constexpr char kSolution[] = R"({
  "name": "my-scale",
  "definition": "scale_n64",
  "author": "me",
  "launch": {
    "kernel": "scale",
    "images": [
      {"path": "scale.sm_80.cubin", "sha256": "@80@"},
      {"path": "scale.sm_90.cubin", "sha256": "@90@"}
    ],
    "grid": ["rows", 1, 1],
    "block": ["n", 1, 1],
    "arguments": ["x", "y", "rows", "factor"],
    "where": ["x % 16 == 0", "rows > 0"]
  }
}
)";

inline constexpr char kPattern[] = R"({
  "label": "engine-scale",
  "benefit": 3,
  "match": {
    "symbol": "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif",
    "params": [8, 8, 4, 4, 4]
  },
  "axes": {
    "n": {"arg": 2, "type": "int32"},
    "rows": {"arg": 3, "type": "int32"}
  },
  "arguments": {
    "y": {"arg": 0, "dtype": "float32"},
    "x": {"arg": 1, "dtype": "float32"},
    "factor": {"arg": 4, "type": "float32"}
  },
  "writes": ["y"],
  "where": ["x != 0", "factor == 0.1"],
  "definition": "scale_n{n}"
}
)";

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fibshim-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    umask(022);  // files that others can write are not trusted
    root_ = pattern;
    write(kImagePath, test_image("sm_90.cubin"));
    write(kOtherImagePath, test_image("sm_80.cubin"));
    write(kDefinitionPath, kDefinition);
    write_solution(kSolution);
    write(kPatternPath, kPattern);
  }
  // The folder with one change.
  TestFolder(const std::string& relative, std::string_view from, std::string_view to)
      : TestFolder() {
    change(relative, from, to);
  }
  ~TestFolder() { std::filesystem::remove_all(root_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return root_; }
  std::string path(const std::string& relative) const { return root_ + "/" + relative; }

  void write(const std::string& relative, std::string_view text) const {
    const std::filesystem::path file = path(relative);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  std::string read(const std::string& relative) const {
    std::ifstream file(path(relative), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void remove(const std::string& relative) const { std::filesystem::remove_all(path(relative)); }

  // Writes a solution with the current hashes of the images.
  void write_solution(std::string text, const std::string& relative = kSolutionPath) const {
    for (const auto& [mark, image] : {std::pair{"@80@", kOtherImagePath}, {"@90@", kImagePath}}) {
      for (size_t at; (at = text.find(mark)) != std::string::npos;) {
        text.replace(at, 4, sha256_hex(sha256(read(image))));
      }
    }
    write(relative, text);
  }
  // Adds the definition and its solution for another n.
  void add_size(const std::string& n) const {
    const std::string name = "scale_n" + n;
    write("definitions/scale/" + name + ".json",
          replaced(replaced(kDefinition, "scale_n64", name), ": 64", ": " + n));
    write("solutions/me/" + name + ".json", replaced(read(kSolutionPath), "scale_n64", name));
  }
  void change(const std::string& relative, std::string_view from, std::string_view to) const {
    write(relative, replaced(read(relative), from, to));
  }

 private:
  std::string root_;
};

}  // namespace fibshim
