#include "loader/compile/solution.h"

#include <algorithm>

#include "loader/compile/definition.h"

namespace fibshim {
namespace {

struct ImageExtension {
  const char* extension;
  ImageKind kind;
};
constexpr ImageExtension kImageExtensions[] = {
    {".cubin", ImageKind::cubin}, {".fatbin", ImageKind::fatbin}, {".ptx", ImageKind::ptx}};

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() > suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

class SolutionReader {
 public:
  SolutionReader(JsonValue root, const std::string& relative, KnownTexts* known,
                 Diagnostics* diagnostics)
      : root_(root), known_(known), diagnostics_(diagnostics) {
    solution_.relative = relative;
    solution_.file = root.mark().file;
  }

  std::optional<SolutionSpec> read() {
    if (!expect_kind(root_, JsonKind::object, "a solution", diagnostics_)) return std::nullopt;
    const uint32_t errors_before = diagnostics_->error_count();
    const What what = "the solution";
    auto name =
        read_name(require_member(root_, "name", what, diagnostics_), "\"name\"", diagnostics_);
    auto definition = read_name(require_member(root_, "definition", what, diagnostics_),
                                "\"definition\"", diagnostics_);
    const JsonValue launch = require_member(root_, "launch", what, diagnostics_);
    if (expect_kind(launch, JsonKind::object, "\"launch\"", diagnostics_)) read_launch(launch);
    read_judged_arguments(root_.find("verify"));
    read_tolerance(root_.find("verify"));
    if (const JsonValue author = root_.find("author"); author.kind() == JsonKind::string) {
      solution_.author = author.string();
    }
    if (!name || !definition) return std::nullopt;
    solution_.name = std::move(*name);
    solution_.definition = std::move(*definition);
    solution_.is_complete = diagnostics_->error_count() == errors_before;
    return std::move(solution_);
  }

 private:
  void error(Rule rule, Mark mark, std::string message, std::string hint = {}) {
    diagnostics_->add(rule, mark, std::move(message), std::move(hint));
  }

  void read_judged_arguments(JsonValue verify) {
    const JsonValue arguments = verify ? verify.find("arguments") : JsonValue();
    if (!arguments) return;
    for (const JsonValue::Member& member : arguments.members()) {
      const JsonValue argument = arguments.value_of(member);
      const JsonValue type = argument.find("type");
      ValueType read_as = ValueType::int64;
      for (const DtypeInfo& dtype : kDtypes) {
        if (type.kind() == JsonKind::string && type.string() == dtype.name) read_as = dtype.scalar;
      }
      if (argument.find("shape")) read_as = ValueType::address;
      solution_.judged_arguments.emplace_back(member.key, read_as);
    }
  }

  // tools/lint/verify_block.h reports values that are not numbers.
  void read_tolerance(JsonValue verify) {
    if (verify.kind() != JsonKind::object) return;
    const auto read = [&](const char* key, double* out) {
      const JsonValue value = verify.find(key);
      if (value.kind() == JsonKind::integer) *out = static_cast<double>(value.integer());
      if (value.kind() == JsonKind::floating) *out = value.floating();
    };
    read("atol", &solution_.atol);
    read("rtol", &solution_.rtol);
    read("required_matched_ratio", &solution_.matched_ratio);
  }

  void read_launch(JsonValue launch) {
    const What what = "\"launch\"";
    solution_.launch_mark = launch.mark();
    accept_only(launch,
                {"kernel", "images", "grid", "block", "cluster", "shared_mem", "arguments", "where",
                 "when", "benefit", "workspace", "pdl", "reads_before_wait", "batch_invariant"},
                what, diagnostics_);
    if (auto kernel = read_name(require_member(launch, "kernel", what, diagnostics_), "\"kernel\"",
                                diagnostics_)) {
      solution_.kernel = std::move(*kernel);
    }
    read_images(require_member(launch, "images", what, diagnostics_));

    solution_.geometry.resize(kGeometryCount);
    read_dim3(require_member(launch, "grid", what, diagnostics_), "grid", kGridX);
    read_dim3(require_member(launch, "block", what, diagnostics_), "block", kBlockX);
    read_dim3(launch.find("cluster"), "cluster", kClusterX);
    solution_.has_cluster = static_cast<bool>(launch.find("cluster"));
    if (auto shared_mem = read_expression(launch.find("shared_mem"), true, "\"shared_mem\"",
                                          diagnostics_, known_)) {
      solution_.geometry[kSharedMem] = std::move(*shared_mem);
    }
    for (uint32_t i = 0; i < kGeometryCount; ++i) {
      MarkedExpression& entry = solution_.geometry[i];
      if (!entry.expression.is_empty()) continue;
      entry = {known_->constant(kGeometry[i].default_value), {"", launch.mark(), {}}, true};
    }

    read_arguments(require_member(launch, "arguments", what, diagnostics_));
    solution_.where = read_clauses(launch.find("where"), "where", diagnostics_, known_);
    solution_.when = read_clauses(launch.find("when"), "when", diagnostics_, known_);
    if (const auto benefit = read_integer(launch.find("benefit"), INT32_MIN, INT32_MAX,
                                          "\"benefit\"", diagnostics_)) {
      solution_.benefit = static_cast<int32_t>(*benefit);
    }
    solution_.pdl_mark = launch.find("pdl").mark();
    solution_.waits_for_previous =
        read_boolean(launch.find("pdl"), "\"pdl\"", diagnostics_).value_or(false);
    read_early_arguments(launch.find("reads_before_wait"));
    solution_.batch_invariant =
        read_boolean(launch.find("batch_invariant"), "\"batch_invariant\"", diagnostics_);
    find_next_may_begin();
    solution_.workspace =
        read_expression(launch.find("workspace"), true, "\"workspace\"", diagnostics_, known_);
    if (solution_.workspace) find_workspace(launch.find("workspace").mark());
  }

  void find_workspace(Mark mark) {
    const auto& passed = solution_.arguments;
    const auto at = std::ranges::find(passed, kWorkspace, &MarkedName::name);
    if (at == passed.end() || std::ranges::count(passed, kWorkspace, &MarkedName::name) != 1) {
      return error(
          Rule::bad_value, mark,
          "with \"workspace\", \"arguments\" must have " + in_quotes(kWorkspace) + " once");
    }
    solution_.workspace_argument = static_cast<uint8_t>(at - passed.begin() + 1);
  }

  void find_next_may_begin() {
    const auto& passed = solution_.arguments;
    const auto at = std::ranges::find(passed, kNextMayBegin, &MarkedName::name);
    if (at == passed.end()) return;
    if (!solution_.waits_for_previous) {
      return error(Rule::bad_value, at->mark,
                   "the argument " + in_quotes(kNextMayBegin) + " needs \"pdl\": true");
    }
    solution_.next_may_begin = static_cast<uint8_t>(at - passed.begin() + 1);
  }

  void read_early_arguments(JsonValue names) {
    if (!names || !expect_kind(names, JsonKind::array, "\"reads_before_wait\"", diagnostics_))
      return;
    if (!solution_.waits_for_previous && names.size() != 0) {
      return error(Rule::bad_value, names.mark(), "\"reads_before_wait\" needs \"pdl\": true");
    }
    for (const JsonValue element : names.elements()) {
      auto name = read_name(element, "an entry of \"reads_before_wait\"", diagnostics_);
      if (!name) continue;
      const auto& passed = solution_.arguments;
      const auto at = std::ranges::find(passed, name->name, &MarkedName::name);
      if (at == passed.end() || at - passed.begin() >= 32) {
        error(Rule::bad_value, element.mark(),
              in_quotes(name->name) + " is none of the first 32 \"arguments\"");
        continue;
      }
      solution_.early_params |= uint32_t{1} << (at - passed.begin());
    }
  }

  void read_dim3(JsonValue value, const char* key, uint32_t first) {
    if (!expect_kind(value, JsonKind::array, {"", key}, diagnostics_)) return;
    const std::vector<JsonValue> elements = value.elements();
    if (elements.size() != 3) {
      error(Rule::bad_value, value.mark(),
            in_quotes(key) + " has " + std::to_string(elements.size()) +
                " entries; it takes [x, y, z]");
      return;
    }
    const What what("an entry of ", key);
    for (uint32_t i = 0; i < 3; ++i) {
      auto entry = read_expression(elements[i], true, what, diagnostics_, known_);
      if (entry) solution_.geometry[first + i] = std::move(*entry);
    }
  }

  void read_arguments(JsonValue arguments) {
    if (!expect_kind(arguments, JsonKind::array, "\"arguments\"", diagnostics_)) return;
    solution_.arguments_mark = arguments.mark();
    const std::vector<JsonValue> elements = arguments.elements();
    if (elements.size() > kMaxParams) {
      error(Rule::limit, arguments.mark(),
            "\"arguments\" has " + std::to_string(elements.size()) + " entries; at most " +
                std::to_string(kMaxParams) + " are accepted");
      return;
    }
    solution_.arguments.reserve(elements.size());
    for (const JsonValue element : elements) {
      if (auto name = read_name(element, "an entry of \"arguments\"", diagnostics_)) {
        solution_.arguments.push_back(std::move(*name));
      }
    }
  }

  void read_images(JsonValue images) {
    if (!expect_kind(images, JsonKind::array, "\"images\"", diagnostics_) ||
        !check_entry_count(images, "\"images\"", diagnostics_)) {
      return;
    }
    if (images.size() == 0) error(Rule::bad_value, images.mark(), "\"images\" is empty");
    solution_.images.reserve(images.size());
    for (const JsonValue element : images.elements()) read_image(element);
  }

  void read_image(JsonValue value) {
    const What what = "an entry of \"images\"";
    if (!expect_kind(value, JsonKind::object, what, diagnostics_)) return;
    accept_only(value, {"path", "sha256"}, what, diagnostics_);
    auto path =
        read_text(require_member(value, "path", what, diagnostics_), "\"path\"", diagnostics_);
    const JsonValue hash = require_member(value, "sha256", what, diagnostics_);
    const auto hex = read_text(hash, "\"sha256\"", diagnostics_);
    if (!path || !hex) return;
    SolutionImage image;
    image.path = std::move(*path);
    const auto parsed = parse_sha256(hex->text);
    if (!parsed) {
      error(Rule::bad_value, hash.mark(), "\"sha256\" must be 64 hexadecimal digits");
      return;
    }
    image.hash = *parsed;
    image.hash_mark = hash.mark();
    if (!resolve_path(&image)) return;
    for (const SolutionImage& other : solution_.images) {
      if (other.relative == image.relative) {
        error(Rule::duplicate_image, image.path.mark,
              in_quotes(image.path.text) + " is twice in \"images\"");
        return;
      }
    }
    solution_.images.push_back(std::move(image));
  }

  bool resolve_path(SolutionImage* image) {
    const std::string& path = image->path.text;
    if (path[0] == '/') {
      error(Rule::image_path, image->path.mark,
            "the image path " + in_quotes(path) + " is absolute",
            "write it relative to the solution's file");
      return false;
    }
    const ImageExtension* found = nullptr;
    for (const ImageExtension& extension : kImageExtensions) {
      if (ends_with(path, extension.extension)) found = &extension;
    }
    if (found == nullptr) {
      error(Rule::image_path, image->path.mark,
            "the image path " + in_quotes(path) + " ends in none of .cubin, .fatbin and .ptx");
      return false;
    }
    image->kind = found->kind;

    const size_t slash = solution_.relative.rfind('/');
    image->relative = slash == std::string::npos ? "" : solution_.relative.substr(0, slash);
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string_view part = std::string_view(path).substr(begin, end - begin);
      if (part == "..") {
        error(Rule::image_path, image->path.at(begin),
              "the image path " + in_quotes(path) + " holds \"..\"",
              "images lie in the folder of the solution's file, or below it");
        return false;
      }
      if (!part.empty() && part != ".") {
        if (!image->relative.empty()) image->relative += '/';
        image->relative += part;
      }
      begin = end + 1;
    }
    return true;
  }

  JsonValue root_;
  KnownTexts* known_;
  Diagnostics* diagnostics_;
  SolutionSpec solution_;
};

}  // namespace

std::optional<SolutionSpec> read_solution(JsonValue root, const std::string& relative,
                                          KnownTexts* known, Diagnostics* diagnostics) {
  return SolutionReader(root, relative, known, diagnostics).read();
}

}  // namespace fibshim
