// A prebuilt index that somebody changed. As it comes it must be refused, unless it is the same; with a
// checksum that fits it may be taken, and must then be readable without leaving it.
//
// Input: 'r' and changes to an index (with_changes); 'c' and the same, after which the checksum is made
// right; 'b' and bytes in the place of the whole index.
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/check/check.h"
#include "loader/check/index.h"
#include "loader/compile/snapshot_builder.h"
#include "loader/check/snapshot_layout.h"
#include "tests/fuzz/small_folder.h"

namespace fibshim::fuzz {
namespace {

constexpr size_t kChecksumAt = 24;
constexpr size_t kHeaderBytes = 64;

// Two patterns, two solutions, everything that a snapshot can hold.
constexpr char kDefinition[] = R"json({
  "name": "scale_n64", "op_type": "scale",
  "axes": {"n": {"type": "const", "value": 64}, "rows": {"type": "var"}},
  "inputs": {"x": {"shape": ["rows", "n"], "dtype": "float32"}},
  "outputs": {"y": {"shape": ["rows", "n"], "dtype": "float32"}}, "reference": ""
})json";
constexpr char kSolution[] = R"json({
  "name": "my-scale", "definition": "scale_n64", "author": "me",
  "launch": {
    "kernel": "scale",
    "images": [{"path": "scale.sm_90.cubin", "sha256": "@cubin@"},
               {"path": "scale.ptx", "sha256": "@ptx@"}],
    "grid": ["rows", "ceil_div(n, 32)", 1], "block": ["n", 1, 1], "cluster": [2, 1, 1],
    "shared_mem": "min(rows, 4) * 16",
    "arguments": ["x", "y", "rows", "factor"], "where": ["x % 16 == 0", "rows > 0 || n == 64"]
}
})json";
constexpr char kPattern[] = R"json({
  "label": "engine-scale", "benefit": 3,
  "match": {"symbol": "re:_Z12engine_scaleI(?<T>[a-z])Lj(?<w>[0-9]+)EEvPT_PKT_iif",
            "params": [8, 8, 4, 4, 4], "image": ["xxh128:00112233445566778899aabbccddeeff"]},
  "axes": {"n": {"arg": 2, "type": "int32"}, "rows": {"expr": "r * 2 - r"}},
  "arguments": {"y": {"arg": 0, "dtype": "float32"}, "x": {"arg": 1, "dtype": "float32"},
                "r": {"arg": 3, "type": "int32"}, "factor": {"arg": 4, "type": "float32"}},
  "writes": ["y"], "where": ["x != 0", "factor == 0.1", "w < 9 && n > 0 || rows > 7"],
  "definition": "scale_n{n}"
})json";
constexpr char kOther[] = R"json({
  "label": "other", "match": {"symbol": "demangled:*scale<*"},
  "axes": {"n": {"grid": "x"}}, "arguments": {"x": {"arg": 0, "dtype": "float32"}}, "writes": [],
  "definition": "other_{n}"
})json";

struct Fixture {
  ScratchFolder folder;
  std::string index;
  Result<RootFolder> root;

  Fixture() : root(tl::unexpected<Error>(Error{})) {
    folder.write("definitions/d.json", kDefinition);
    folder.write("solutions/s.json", with_hashes(kSolution));
    folder.write("solutions/scale.sm_90.cubin", small_cubin());
    folder.write("solutions/scale.ptx", kSmallPtx);
    folder.write("patterns/p.json", kPattern);
    folder.write("patterns/o.json", kOther);
    folder.write("fibshim.json", R"({"log": "debug"})");
    const CheckReport report = check_folder(folder.path());
    for (const Diagnostic& diagnostic : report.diagnostics) {
      if (diagnostic.severity == Severity::error) {
        fprintf(stderr, "%s\n", format_diagnostic(diagnostic).c_str());
      }
    }
    require(report.error_count == 0 && report.ready_binding_count == 1, "the folder is sound");
    index = bytes_of_index(report);
    root = RootFolder::open(folder.path());
  }
};

void set_checksum(std::string* bytes) {
  if (bytes->size() < kHeaderBytes) return;
  const XXH128_hash_t hash =
      XXH3_128bits(bytes->data() + kHeaderBytes, bytes->size() - kHeaderBytes);
  const uint64_t halves[] = {hash.low64, hash.high64};
  memcpy(bytes->data() + kChecksumAt, halves, sizeof halves);
}

// Reads what the shim and the tools read.
void use(const Snapshot& snapshot) {
  size_t text_bytes = 0;
  const auto text = [&](Offset at) { text_bytes += strlen(snapshot.text(at)); };
  for (uint32_t i = 0; i < snapshot.patterns.count; ++i) {
    const Pattern& pattern = snapshot.begin(snapshot.patterns)[i];
    text(pattern.label);
    text(pattern.file);
    for (uint32_t k = 0; k < pattern.name.count; ++k) {
      const NamePart& part = snapshot.begin(pattern.name)[k];
      if (part.kind == NamePart::Kind::text) text(part.text);
    }
    for (uint32_t k = 0; k < pattern.routes.count; ++k) {
      const Route& route = snapshot.begin(pattern.routes)[k];
      text(route.definition);
      text(snapshot.begin(snapshot.bindings)[route.binding].reason);
    }
    for (uint32_t k = 0; k < pattern.images.count; ++k) {
      text_bytes += snapshot.begin(pattern.images)[k].low & 1;
    }
  }
  for (uint32_t i = 0; i < snapshot.solutions.count; ++i) {
    const Solution& solution = snapshot.begin(snapshot.solutions)[i];
    for (const Offset at : {solution.name, solution.definition, solution.file, solution.kernel,
                            solution.error_message}) {
      text(at);
    }
    for (uint32_t k = 0; k < solution.images.count; ++k) {
      const Image& image = snapshot.begin(solution.images)[k];
      text(image.path);
      text_bytes += image_rank(image, 90);
    }
  }
  for (uint32_t i = 0; i < snapshot.settings.count; ++i) {
    text(snapshot.begin(snapshot.settings)[i].name);
    text(snapshot.begin(snapshot.settings)[i].value);
  }
  text(snapshot.root);
  run_programs(snapshot);
  SymbolMatch matches[4];
  for (const char* symbol : {"scale", "_Z12engine_scaleIfLj8EEvPT_PKT_iif", "_Z5scaleIfEvv"}) {
    const uint32_t count = matcher_of(&snapshot).match(symbol, matches, 4);
    for (uint32_t i = 0; i < std::min<uint32_t>(count, 4); ++i) {
      require(matches[i].pattern < snapshot.patterns.count, "a pattern that fits is there");
      for (const auto& capture : matches[i].captures) {
        require(capture.begin + capture.length <= strlen(symbol), "a capture is of the symbol");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Fixture fixture;
  if (size == 0) return 0;
  const std::string_view rest = as_text(data + 1, size - 1);
  std::string bytes = data[0] == 'b' ? std::string(rest) : with_changes(fixture.index, rest);
  if (data[0] == 'c') set_checksum(&bytes);
  const bool is_same = bytes == fixture.index;
  const OpenedIndex opened = use_index(fixture.folder.path(), *fixture.root, std::move(bytes));
  if (is_same) require(opened.snapshot != nullptr, "an index that is unchanged is used");
  if (opened.snapshot == nullptr) {
    require(!opened.refusal.empty(), "a refusal says why");
    return 0;
  }
  require(is_same || data[0] == 'c', "an index that was changed is refused");
  use(*opened.snapshot);
  return 0;
}

}  // namespace fibshim::fuzz
