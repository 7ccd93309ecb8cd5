// check --write-manifest, minisign, check --key and FIBSHIM_REQUIRE_KEY, as an operator uses them.

#include <filesystem>
#include <regex>

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"

namespace fibshim::test {
namespace {

class Manifest : public testing::Test {
 protected:
  Manifest() {
    write_config_folder(config());
    const ProgramResult made =
        run_program({"minisign", "-G", "-W", "-p", public_file(), "-s", secret()});
    EXPECT_EQ(made.exit_code, 0) << "the tests need minisign: " << made.err;
  }

  std::string config() { return folder_ / "config"; }
  std::string manifest() { return config() + "/fibshim.manifest"; }
  std::string secret() { return folder_ / "team.key"; }
  std::string public_file() { return folder_ / "team.pub"; }
  std::string public_key() {
    const std::string text = read_text(public_file());
    return text.substr(text.find('\n') + 1, 56);
  }

  ProgramResult write_manifest() { return run_fibshim({"check", "--write-manifest", config()}); }
  void sign() {
    ASSERT_EQ(write_manifest().exit_code, 0);
    ASSERT_EQ(run_program({"minisign", "-S", "-s", secret(), "-m", manifest()}).exit_code, 0);
  }
  int check_with_key() { return run_fibshim({"check", "--key", public_key(), config()}).exit_code; }

  // Replaces the parts of the text that change from run to run.
  std::string golden(std::string text) {
    for (size_t at; (at = text.find(config())) != std::string::npos;) {
      text.replace(at, config().size(), "CONFIG");
    }
    return std::regex_replace(text, std::regex("[0-9a-f]{64}"), "SHA");
  }

  void change_pattern() { write_text(pattern_file(), read_text(pattern_file()) + "\n"); }
  std::string pattern_file() {
    return std::filesystem::directory_iterator(config() + "/patterns")->path();
  }

  TemporaryFolder folder_;
};

TEST_F(Manifest, SaysWhatToRunNextAndCheckAgreesAfterIt) {
  const ProgramResult written = exits(0, write_manifest());
  EXPECT_EQ(
      golden(written.err),
      "fibshim check: CONFIG/fibshim.manifest: 4 files listed. Sign the list with: minisign -S "
      "-s SECRET_KEY -m CONFIG/fibshim.manifest\n");
  EXPECT_EQ(check_with_key(), 1);
  sign();
  for (const std::string& key : {public_key(), public_file()}) {
    (void)exits(0, run_fibshim({"check", "--key", key, config()}));
  }
  (void)exits(0, run_fibshim({"check", "--key", "team.pub", "config"}, {{}, folder_.path()}));
}

TEST_F(Manifest, CheckNamesWhatDiffers) {
  sign();
  change_pattern();
  write_text(config() + "/patterns/zz-new.json", "{}");
  const ProgramResult result = exits(1, run_fibshim({"check", "--key", public_file(), config()}));
  const std::string name = std::filesystem::path(pattern_file()).filename();
  EXPECT_CONTAINS(golden(result.out),
                  "/patterns/zz-new.json: error: not signed: fibshim.manifest does "
                  "not name it [signature]\n")
      << result.out;
  EXPECT_CONTAINS(golden(result.out),
                  ": error: not the file that was signed: its SHA-256 is SHA, not "
                  "SHA [signature]\n")
      << result.out;
  EXPECT_CONTAINS(result.out, "2 errors, 0 warnings; the folder is not loaded\n");
}

TEST_F(Manifest, IsNotWrittenForAFolderWithMistakes) {
  write_text(config() + "/patterns/broken.json", "{");
  const ProgramResult result = exits(1, write_manifest());
  EXPECT_CONTAINS(result.out, "[json-syntax]");
  EXPECT_EQ(golden(result.err), "fibshim check: CONFIG: has mistakes; no manifest was written\n");
  EXPECT_FALSE(std::filesystem::exists(manifest()));
}

TEST_F(Manifest, IsNotWrittenThroughALink) {
  write_text(folder_ / "precious", "mine");
  std::filesystem::create_symlink(folder_ / "precious", manifest());
  EXPECT_EQ(write_manifest().exit_code, 1);
  EXPECT_EQ(read_text(folder_ / "precious"), "mine");
}

TEST_F(Manifest, IsWrittenAgainWhereTheKeyIsRequired) {
  sign();
  change_pattern();
  EXPECT_EQ(run_fibshim({"check", "--write-manifest", config()},
                        {{{"FIBSHIM_REQUIRE_KEY", public_key()}}, ""})
                .exit_code,
            0);
  EXPECT_EQ(check_with_key(), 1);
  sign();
  EXPECT_EQ(check_with_key(), 0);
}

TEST_F(Manifest, RunRefusesWhatTheKeyHasNotSigned) {
  const ProgramOptions required = {{{"FIBSHIM_REQUIRE_KEY", public_file()}}, ""};
  const std::vector<std::string> run = {"run", "-c", config(), "--", "echo", "ran"};
  const ProgramResult unsigned_run = exits(1, run_fibshim(run, required));
  EXPECT_EQ(unsigned_run.out, "");
  EXPECT_CONTAINS(unsigned_run.err, "not signed: there is no fibshim.manifest");
  sign();
  EXPECT_EQ(run_fibshim(run, required).out, "ran\n");
}

TEST_F(Manifest, TheOldCommandSaysWhatToUseInstead) {
  const ProgramResult result = exits(2, run_fibshim({"sign", "--key", "x", config()}));
  EXPECT_CONTAINS(result.err, "minisign");
  EXPECT_CONTAINS(result.err, "fibshim check --write-manifest DIR");
  EXPECT_EQ(run_fibshim({"check", "--write-manifest", "--key", public_key(), config()}).exit_code,
            2);
}

}  // namespace
}  // namespace fibshim::test
