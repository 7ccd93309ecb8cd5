// fibshim sign, check --key and FIBSHIM_REQUIRE_KEY, as an operator uses them; and that minisign
// itself takes what sign makes, where it is installed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <regex>

#include "tests/tools/config_folder.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

class Sign : public testing::Test {
 protected:
  Sign() { write_config_folder(config()); }

  std::string config() { return folder_ / "config"; }
  std::string secret() { return folder_ / "team.key"; }
  std::string public_file() { return folder_ / "team.pub"; }
  std::string public_key() { return last_line(public_file()); }
  static std::string last_line(const std::string& file) {
    const std::string text = read_text(file);
    return text.substr(text.find('\n') + 1, 56);
  }

  void generate() {
    const ProgramResult result =
        run_fibshim({"sign", "--generate-key", folder_ / "team", "--no-password"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    ASSERT_EQ(result.out, public_key() + "\n") << read_text(public_file());
  }
  ProgramResult sign() { return run_fibshim({"sign", "--key", secret(), config()}); }

  // Text with the folder's changing parts taken out.
  std::string golden(std::string text) {
    for (const auto& [part, name] :
         {std::pair{config(), std::string("CONFIG")}, {folder_.path(), std::string("FOLDER")}}) {
      for (size_t at; (at = text.find(part)) != std::string::npos;) {
        text.replace(at, part.size(), name);
      }
    }
    return std::regex_replace(std::regex_replace(text, std::regex("[0-9A-F]{16}"), "ID"),
                              std::regex("[0-9a-f]{64}"), "SHA");
  }

  std::string pattern_file() {
    for (const auto& entry : std::filesystem::directory_iterator(config() + "/patterns")) {
      return entry.path();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(Sign, MakesAKeyThatOnlyItsOwnerReads) {
  generate();
  struct stat status {};
  ASSERT_EQ(stat(secret().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(public_file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  // Never over one that is there.
  const std::string before = read_text(secret());
  const ProgramResult again =
      run_fibshim({"sign", "--generate-key", folder_ / "team", "--no-password"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_EQ(golden(again.err), "fibshim sign: FOLDER/team.key: File exists\n");
  EXPECT_EQ(read_text(secret()), before);
}

TEST_F(Sign, SaysWhatItSignedAndCheckAgrees) {
  generate();
  const ProgramResult signed_result = sign();
  EXPECT_EQ(signed_result.exit_code, 0);
  EXPECT_EQ(signed_result.out, "");
  EXPECT_EQ(golden(signed_result.err), "fibshim sign: CONFIG: 4 files signed with the key ID\n");
  for (const std::string& key : {public_key(), public_file()}) {
    const ProgramResult result = run_fibshim({"check", "--key", key, config()});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
  const ProgramResult relative =
      run_fibshim({"check", "--key", "team.pub", "config"}, {{}, folder_.path(), ""});
  EXPECT_EQ(relative.exit_code, 0) << relative.out << relative.err;
}

TEST_F(Sign, CheckNamesWhatDiffers) {
  generate();
  ASSERT_EQ(sign().exit_code, 0);
  const std::string pattern = pattern_file();
  write_text(pattern, read_text(pattern) + "\n");
  write_text(config() + "/patterns/zz-new.json", "{}");
  const ProgramResult result = run_fibshim({"check", "--key", public_file(), config()});
  EXPECT_EQ(result.exit_code, 1);
  const std::string name = pattern.substr(pattern.rfind('/') + 1);
  EXPECT_EQ(
      golden(result.out),
      "CONFIG/patterns/" + name +
          ": error: not the file that was signed: its SHA-256 is SHA, not SHA [signature]\n"
          "CONFIG/patterns/zz-new.json: error: not signed: fibshim.manifest does not name "
          "it [signature]\n"
          "CONFIG: 1 definition, 1 solution, 0 patterns: 2 errors, 0 warnings; the folder is not "
          "loaded\n")
      << result.out;
}

TEST_F(Sign, RefusesAFolderWithMistakes) {
  generate();
  write_text(config() + "/patterns/broken.json", "{");
  const ProgramResult result = sign();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("[json-syntax]"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("Nothing was signed"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(config() + "/fibshim.manifest"));
}

TEST_F(Sign, SignsAgainWhereTheKeyIsRequired) {
  generate();
  ASSERT_EQ(sign().exit_code, 0);
  const std::string pattern = pattern_file();
  write_text(pattern, read_text(pattern) + "\n");
  EXPECT_EQ(run_fibshim({"sign", "--key", secret(), config()},
                        {{{"FIBSHIM_REQUIRE_KEY", public_key()}}, "", ""})
                .exit_code,
            0);
  EXPECT_EQ(run_fibshim({"check", "--key", public_key(), config()}).exit_code, 0);
}

TEST_F(Sign, SignsTheIndexWithTheFolder) {
  generate();
  ASSERT_EQ(run_fibshim({"check", "--write-index", config()}).exit_code, 0);
  EXPECT_NE(sign().err.find(": 5 files signed"), std::string::npos);
  // One that stands for another folder is not.
  const std::string pattern = pattern_file();
  write_text(pattern, read_text(pattern) + "\n");
  const std::string err = sign().err;
  EXPECT_NE(err.find(": 4 files signed"), std::string::npos) << err;
  EXPECT_NE(err.find("; not the index: "), std::string::npos) << err;
}

TEST_F(Sign, RunRefusesWhatTheKeyHasNotSigned) {
  generate();
  const std::map<std::string, std::string> required = {{"FIBSHIM_REQUIRE_KEY", public_file()}};
  const std::vector<std::string> run = {"run", "-c", config(), "--", "echo", "ran"};
  const ProgramResult unsigned_run = run_fibshim(run, {required, "", ""});
  EXPECT_EQ(unsigned_run.exit_code, 1);
  EXPECT_EQ(unsigned_run.out, "");
  EXPECT_NE(unsigned_run.err.find("not signed: there is no fibshim.manifest"), std::string::npos)
      << unsigned_run.err;
  ASSERT_EQ(sign().exit_code, 0);
  EXPECT_EQ(run_fibshim(run, {required, "", ""}).out, "ran\n");
}

TEST_F(Sign, EncryptsTheKeyWithAPassword) {
  const auto with_password = [&](const std::string& password, const std::string& arguments) {
    return run_program(
        {"sh", "-c",
         "printf '" + password + "\\n' | " + build_path("bin/fibshim") + " sign " + arguments});
  };
  ASSERT_EQ(with_password("secret", "--generate-key " + (folder_ / "team")).exit_code, 0);
  EXPECT_NE(read_text(secret()).find("encrypted secret key"), std::string::npos);
  const std::string arguments = "--key " + secret() + " " + config();
  const ProgramResult wrong = with_password("Secret", arguments);
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_EQ(golden(wrong.err), "fibshim sign: FOLDER/team.key: wrong password\n");
  EXPECT_EQ(with_password("secret", arguments).exit_code, 0);
  EXPECT_EQ(run_fibshim({"check", "--key", public_file(), config()}).exit_code, 0);
  EXPECT_EQ(with_password("", "--generate-key " + (folder_ / "other")).exit_code, 1);
}

TEST_F(Sign, RefusesNonsense) {
  generate();
  EXPECT_EQ(run_fibshim({"sign"}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"sign", config()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"sign", "--key", secret()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"sign", "--no-password", "--key", secret(), config()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"sign", "--generate-key", "x", config()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"sign", "--key", public_file(), config()}).exit_code, 1);
  EXPECT_EQ(run_fibshim({"sign", "--key", folder_ / "none", config()}).exit_code, 1);
  // Any byte of the secret key changed.
  const std::string good = read_text(secret());
  const size_t line = good.find('\n') + 1;
  for (size_t i = line; i + 1 < good.size(); i += 7) {
    std::string damaged = good;
    damaged[i] = damaged[i] == 'A' ? 'B' : 'A';
    write_text(folder_ / "damaged.key", damaged);
    const ProgramResult result = run_fibshim({"sign", "--key", folder_ / "damaged.key", config()});
    const bool is_unused = i >= line + 8 && i < line + 73;  // salt and costs of no password
    EXPECT_EQ(result.exit_code, is_unused ? result.exit_code : 1) << i << result.err;
    EXPECT_LE(result.exit_code, 1);
  }
}

bool has_minisign() { return run_program({"sh", "-c", "command -v minisign"}).exit_code == 0; }

TEST_F(Sign, MinisignVerifiesWhatItSigns) {
  if (!has_minisign()) GTEST_SKIP() << "minisign is not installed";
  generate();
  ASSERT_EQ(sign().exit_code, 0);
  const std::vector<std::string> verify = {"minisign",    "-V", "-p",
                                           public_file(), "-m", config() + "/fibshim.manifest"};
  const ProgramResult result = run_program(verify);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("Signature and comment signature verified"), std::string::npos)
      << result.out;
  write_text(config() + "/fibshim.manifest", read_text(config() + "/fibshim.manifest") + " ");
  EXPECT_NE(run_program(verify).exit_code, 0);
}

TEST_F(Sign, MinisignReadsItsKeysAndTheOtherWayRound) {
  if (!has_minisign()) GTEST_SKIP() << "minisign is not installed";
  generate();
  write_text(folder_ / "text", "text");
  EXPECT_EQ(run_program({"minisign", "-S", "-s", secret(), "-m", folder_ / "text"}).exit_code, 0);
  EXPECT_EQ(run_program({"minisign", "-V", "-p", public_file(), "-m", folder_ / "text"}).exit_code,
            0);

  const std::string key = folder_ / "mini.key";
  ASSERT_EQ(run_program({"minisign", "-G", "-W", "-p", folder_ / "mini.pub", "-s", key}).exit_code,
            0);
  EXPECT_EQ(run_fibshim({"sign", "--key", key, config()}).exit_code, 0);
  EXPECT_EQ(run_fibshim({"check", "--key", folder_ / "mini.pub", config()}).exit_code, 0);
  // What minisign itself signs.
  ASSERT_EQ(
      run_program({"minisign", "-S", "-s", key, "-m", config() + "/fibshim.manifest"}).exit_code,
      0);
  const ProgramResult result = run_fibshim({"check", "--key", folder_ / "mini.pub", config()});
  EXPECT_EQ(result.exit_code, 0) << result.out;
}

}  // namespace
}  // namespace fibshim::test
