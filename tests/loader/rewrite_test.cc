// The snapshot of a rewrite pattern, seen through the API that the shim uses. check_test.cc tests
// its mistakes.
#include "loader/check/check.h"
#include "tests/loader/rewrite_folder.h"

namespace fibshim {
namespace {

std::string text_of(const CheckReport& report) {
  std::string out;
  for (const Diagnostic& one : report.diagnostics) out += format_diagnostic(one) + "\n";
  return out;
}

TEST(Rewrite, ReadsItsKernelsOneBehindTheOther) {
  const TestFolder folder;
  folder.write(kRewritePath, kRewrite);
  const CheckReport report = check_folder(folder.path());
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  EXPECT_EQ(report.pattern_count, 2u);
  EXPECT_EQ(report.ready_binding_count, 2u);
  const Snapshot& snapshot = *report.snapshot;
  ASSERT_EQ(snapshot.rewrites.count, 1u);
  const Rewrite& rewrite = *snapshot.begin(snapshot.rewrites);
  const Pattern* const patterns = snapshot.begin(snapshot.patterns);
  ASSERT_EQ(snapshot.patterns.count, 4u);
  EXPECT_EQ(patterns[rewrite.pattern].kind, PatternKind::rewrite);
  EXPECT_STREQ(snapshot.text(patterns[rewrite.pattern].label), "engine-two");
  EXPECT_EQ(patterns[rewrite.pattern].param_sizes.count, 3 + 4 + kGeometryCount);
  EXPECT_EQ(rewrite.first_member, 2u);
  EXPECT_EQ(rewrite.member_count, 2);
  EXPECT_EQ(rewrite.first_param[1], 3);
  for (uint32_t i = 0; i < 2; ++i) {
    const Pattern& member = patterns[2 + i];
    EXPECT_EQ(member.kind, PatternKind::member);
    EXPECT_EQ(member.rewrite, 0);
    EXPECT_EQ(snapshot.text(member.label), "engine-two[" + std::to_string(i) + "]");
    EXPECT_EQ(member.routes.count, 0u);
    SymbolMatch matches[4];
    const char* const symbol = i == 0 ? "engine_double" : "engine_copy";
    ASSERT_EQ(matcher_of(&snapshot).match(symbol, matches, 4), 1u);
    EXPECT_EQ(matches[0].pattern, 2 + i);
  }

  // All buffers have 4 * n * rows bytes; n is a parameter of the first kernel, rows the grid of the
  // second.
  ASSERT_EQ(rewrite.buffers.count, 4u);
  const RewriteBuffer* const buffers = snapshot.begin(rewrite.buffers);
  uint64_t pointer = 0x1000;
  int32_t n = 64;
  uint32_t geometry[kGeometryCount] = {5};
  std::vector<void*> params = {&pointer, &pointer, &n, &pointer, &pointer, &n, &n};
  for (uint32_t& value : geometry) params.push_back(&value);
  const LaunchView view = {params.data(), nullptr, {}};
  struct {
    int param, member, is_written, is_dead;
  } const wanted[] = {{0, 0, 0, 0}, {1, 0, 1, 1}, {3, 1, 0, 0}, {4, 1, 1, 0}};
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(buffers[i].param, wanted[i].param) << i;
    EXPECT_EQ(buffers[i].member, wanted[i].member) << i;
    EXPECT_EQ(buffers[i].is_written, wanted[i].is_written) << i;
    EXPECT_EQ(buffers[i].is_dead, wanted[i].is_dead) << i;
    int64_t bytes = 0;
    ASSERT_TRUE(
        run_program(snapshot.begin(buffers[i].bytes), buffers[i].bytes.count, view, &bytes));
    EXPECT_EQ(bytes, 4 * 64 * 5);
  }
}

// A solution may leave out only buffers that are dead.
TEST(Rewrite, ASolutionWritesWhatTheKernelsWrite) {
  const TestFolder folder;
  folder.write(kRewritePath, replaced(kRewrite, "  \"dead\": [\"twice\"],\n", ""));
  const CheckReport report = check_folder(folder.path());
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  EXPECT_EQ(report.ready_binding_count, 1u);
  EXPECT_EQ(report.refused_binding_count, 1u);
  EXPECT_NE(text_of(report).find("\"twice\", which the solution does not take"), std::string::npos)
      << text_of(report);
}

TEST(Rewrite, ABufferMayBeWrittenFirst) {
  const TestFolder folder;
  folder.write(kRewritePath,
               replaced(kRewrite, R"("dead": ["twice"])", R"("written_first": ["twice"])"));
  const CheckReport report = check_folder(folder.path());
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  const Rewrite& rewrite = *report.snapshot->begin(report.snapshot->rewrites);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.snapshot->begin(rewrite.buffers)[i].is_written_first, i == 1) << i;
  }
}

TEST(Rewrite, ABufferMayReachToTheEndOfItsAllocation) {
  const TestFolder folder;
  folder.write(
      kRewritePath,
      replaced(kRewrite,
               R"("y": {"kernel": 1, "arg": 1, "dtype": "float32", "bytes": "4 * n * rows"})",
               R"("y": {"kernel": 1, "arg": 1, "dtype": "float32", "bytes": "*"})"));
  const CheckReport report = check_folder(folder.path());
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  const Rewrite& rewrite = *report.snapshot->begin(report.snapshot->rewrites);
  for (uint32_t i = 0; i < 4; ++i) {
    const RewriteBuffer& buffer = report.snapshot->begin(rewrite.buffers)[i];
    EXPECT_EQ(buffer.reaches_end, i == 3) << i;
    EXPECT_EQ(buffer.bytes.count == 0, i == 3) << i;
  }
}

TEST(Rewrite, ABufferMayBeginElsewhereThanThePointer) {
  const TestFolder folder;
  const auto write = [&](const char* shift_of) {
    std::string pattern = kRewrite;
    const size_t at = pattern.find(", \"bytes\"", pattern.find(shift_of));
    folder.write(kRewritePath, pattern.insert(at, R"(, "shift": "-4 * n")"));
    return check_folder(folder.path());
  };
  const CheckReport report = write(R"("y": {)");
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  const Rewrite& rewrite = *report.snapshot->begin(report.snapshot->rewrites);
  int32_t n = 64;
  void* params[] = {&n, &n, &n};
  for (uint32_t i = 0; i < 4; ++i) {
    const Program shift = report.snapshot->begin(rewrite.buffers)[i].shift;
    ASSERT_EQ(shift.count != 0, i == 3) << i;
    if (i != 3) continue;
    int64_t bytes = 0;
    ASSERT_TRUE(
        run_program(report.snapshot->begin(shift), shift.count, {params, nullptr, {}}, &bytes));
    EXPECT_EQ(bytes, -256);
  }
  EXPECT_NE(text_of(write(R"("twice": {)")).find("\"dead\" names \"twice\", which has a \"shift\""),
            std::string::npos);
}

// Such a buffer has one name for each kernel that writes it.
TEST(Rewrite, ASolutionTakesABufferThatTwoKernelsWriteByOneName) {
  const TestFolder folder;
  folder.write(kRewritePath,
               replaced(replaced(kRewrite, "  \"dead\": [\"twice\"],\n", ""), "\"copied == twice\"",
                        "\"copied == twice\", \"y == twice\""));
  const CheckReport report = check_folder(folder.path());
  ASSERT_NE(report.snapshot, nullptr) << text_of(report);
  EXPECT_EQ(report.ready_binding_count, 2u) << text_of(report);
}

TEST(Rewrite, HasAtMostAsManyParametersAsALaunch) {
  const TestFolder folder;
  std::string sizes = "8, 8, 4";
  for (int i = 0; i < 120; ++i) sizes += ", 4";
  folder.write(kRewritePath, replaced(kRewrite, R"("engine_double", "params": [8, 8, 4])",
                                      R"("engine_double", "params": [)" + sizes + "]"));
  const CheckReport report = check_folder(folder.path());
  EXPECT_EQ(report.snapshot, nullptr);
  EXPECT_NE(text_of(report).find("137 parameters"), std::string::npos) << text_of(report);
}

}  // namespace
}  // namespace fibshim
