// Folders that a key must have signed: only signed files are used.

#include <sodium.h>

#include "loader/check/check.h"
#include "tests/loader/minisign_writer.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

// Signs as minisign does, with a key made from a number.
class Signer {
 public:
  explicit Signer(uint8_t number) {
    key_.id = {number, 2, 3, 4, 5, 6, 7, 8};
    std::array<uint8_t, crypto_sign_SEEDBYTES> seed;
    seed.fill(number);
    crypto_sign_seed_keypair(key_.point.data(), secret_.data(), seed.data());
  }

  std::string key() const {
    const std::string text = public_key_text(key_);
    return text.substr(text.find('\n') + 1, 56);
  }
  const PublicKey& public_key() const { return key_; }

  std::string sign(const std::string& message, const std::string& comment = "c") const {
    const Ed25519Signature own = raw(text_of(prehash(message)));
    return signature_text(key_.id, own, comment, raw(text_of(own) + comment));
  }

  // Signs the message itself, as minisign's first versions did.
  std::string sign_plainly(const std::string& message) const {
    const Ed25519Signature own = raw(message);
    return "untrusted comment: x\n" + to_base64("Ed" + text_of(key_.id) + text_of(own)) +
           "\ntrusted comment: c\n" + to_base64(text_of(raw(text_of(own) + "c"))) + "\n";
  }

  template <class Bytes>
  static std::string text_of(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void sign_folder(const TestFolder& folder) const {
    CheckOptions options;
    options.required_key.clear();
    options.wants_entries = true;
    const CheckReport report = check_folder(folder.path(), options);
    ASSERT_EQ(report.error_count, 0u);
    const auto text = manifest_text(report.manifest.entries);
    ASSERT_TRUE(text);
    folder.write(kManifestFile, *text);
    folder.write(kManifestSignatureFile, sign(*text));
  }

 private:
  Ed25519Signature raw(const std::string& what) const {
    Ed25519Signature out;
    crypto_sign_detached(out.data(), nullptr, reinterpret_cast<const uint8_t*>(what.data()),
                         what.size(), secret_.data());
    return out;
  }

  PublicKey key_;
  std::array<uint8_t, crypto_sign_SECRETKEYBYTES> secret_;
};

const Signer& ours() {
  static const Signer signer(1);
  return signer;
}

std::string findings_of(const std::string& folder, const std::string& key) {
  CheckOptions options;
  options.required_key = key;
  const CheckReport report = check_folder(folder, options);
  std::string text;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    text += format_diagnostic(diagnostic) + "\n";
  }
  EXPECT_EQ(text.empty(), report.snapshot != nullptr);
  return text;
}

TEST(Signature, FitsItsMessageAndKeyOnly) {
  const std::string message = "a message";
  for (const std::string& signature : {ours().sign(message), ours().sign_plainly(message)}) {
    EXPECT_TRUE(verify_signature(message, signature, ours().public_key()));
    EXPECT_FALSE(verify_signature("another one", signature, ours().public_key()));
    const auto other = verify_signature(message, signature, Signer(2).public_key());
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().message,
              "signed with the key 0807060504030201, not with 0807060504030202");
    // Another key with the same id.
    PublicKey disguised = Signer(2).public_key();
    disguised.id = ours().public_key().id;
    EXPECT_FALSE(verify_signature(message, signature, disguised));
  }
}

TEST(Signature, WithAnyBitChangedIsRefused) {
  const std::string signature = ours().sign("m", "timestamp:1");
  const size_t second_line = signature.find('\n') + 1;
  uint32_t refused = 0;
  for (size_t i = second_line; i < signature.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = signature;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      if (changed == signature) continue;
      EXPECT_FALSE(verify_signature("m", changed, ours().public_key())) << i << " " << bit;
      ++refused;
    }
  }
  EXPECT_EQ(refused, (signature.size() - second_line) * 8);
  for (size_t length = 0; length + 1 < signature.size(); ++length) {
    EXPECT_FALSE(verify_signature("m", signature.substr(0, length), ours().public_key()));
  }
  EXPECT_FALSE(verify_signature("m", signature + "more", ours().public_key()));
}

TEST(Signature, OfMinisignItselfIsVerified) {
  // minisign 0.11: minisign -G -W; printf 'fibshim\n' >m; minisign -S -m m -t 'a comment'
  const auto key = parse_public_key("RWSN0sy/ISUuzupI8wk/qWADpKMqx5XkWuTX8+zY1ogc/6INCgd0WPBw");
  ASSERT_TRUE(key);
  const std::string signature =
      "untrusted comment: signature from minisign secret key\n"
      "RUSN0sy/"
      "ISUuzn8wCk3py2NqtwK4ddQXx5YFcglZGpvJIRIsdhJd18v6cKxyP0u+dinIIaHhIyW69u3fUtwEVEz7cwJQ3sIw1wY="
      "\n"
      "trusted comment: a comment\n"
      "tMXbpkn95x0ktax2kiacy4N0LNRSN2gBs+LN0pQhO3YGPQOdJZ6A6mXbjmX8ny+l6585U+XBUKM4Ah56CsemCw==\n";
  EXPECT_TRUE(verify_signature("fibshim\n", signature, *key));
  EXPECT_FALSE(verify_signature("fibshim", signature, *key));
}

TEST(PublicKeys, AreALineOrAFile) {
  const TestFolder folder;
  const std::string text = public_key_text(ours().public_key());
  EXPECT_TRUE(parse_public_key(ours().key()));
  EXPECT_TRUE(parse_public_key(text));
  for (const std::string& wrong :
       {std::string(), std::string("RW"), ours().key() + "x", "x" + ours().key(),
        text + ours().key(), ours().key().substr(0, 55), "XX" + ours().key().substr(2)}) {
    EXPECT_FALSE(parse_public_key(wrong)) << wrong;
  }
  folder.write("k.pub", text);
  EXPECT_TRUE(read_public_key(folder.path("k.pub"), Trust::owner));
  EXPECT_FALSE(read_public_key("k.pub", Trust::owner));
  ASSERT_EQ(chmod(folder.path("k.pub").c_str(), 0666), 0);
  const auto writable = read_public_key(folder.path("k.pub"), Trust::owner);
  ASSERT_FALSE(writable);
  EXPECT_CONTAINS(writable.error().message, "writable by everybody");
  ASSERT_EQ(chmod(folder.path("k.pub").c_str(), 0644), 0);
  std::filesystem::create_directory(folder.path("open"));
  folder.write("open/k.pub", text);
  ASSERT_EQ(chmod(folder.path("open").c_str(), 0777), 0);
  EXPECT_FALSE(read_public_key(folder.path("open/k.pub"), Trust::owner));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder.path("k.pub").c_str(), 12345, 0), 0);
    EXPECT_FALSE(read_public_key(folder.path("k.pub"), Trust::owner));
  }
}

TEST(SignedFolder, IsUsedWithItsKeyOnly) {
  const TestFolder folder;
  folder.write("fibshim.json", "{}");
  const std::string unsigned_text = findings_of(folder.path(), ours().key());
  EXPECT_EQ(unsigned_text,
            folder.path() +
                ": error: not signed: there is no fibshim.manifest, and only what the key "
                "0807060504030201 has signed is used [signature]\n");
  ours().sign_folder(folder);
  EXPECT_EQ(findings_of(folder.path(), ours().key()), "");
  EXPECT_EQ(findings_of(folder.path(), ""), "");
  EXPECT_EQ(findings_of(folder.path(), Signer(2).key()),
            folder.path() +
                ": error: fibshim.manifest.minisig: signed with the key 0807060504030201, not with "
                "0807060504030202 [signature]\n");
  EXPECT_CONTAINS(findings_of(folder.path(), "nonsense"), "neither a minisign public key");
}

// With FIBSHIM_CONFIG=a:b each folder has a signature of its own.
TEST(SignedFolder, AListIsUsedWhereEachOfItsFoldersIsSigned) {
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  const TestFolder a;
  const TestFolder b;
  b.change(kPatternPath, "engine-scale", "other-scale");
  b.change(kPatternPath, "12engine_scale", "11other_scale");
  const std::string list = a.path() + ":" + b.path();
  const std::string key = ours().key();
  const auto patterns_opened = [&] {
    char message[1024];
    const SnapshotPtr snapshot(
        api.open(list.c_str(), {.required_key = key.c_str()}, message, sizeof message));
    return snapshot == nullptr ? 0u : snapshot->patterns.count;
  };
  ours().sign_folder(a);
  EXPECT_EQ(patterns_opened(), 0u);
  Signer(2).sign_folder(b);
  EXPECT_EQ(patterns_opened(), 0u);
  ours().sign_folder(b);
  EXPECT_EQ(patterns_opened(), 2u);
  CheckOptions options;
  options.required_key = key;
  EXPECT_EQ(check_folder(list, options).error_count, 0u);
  EXPECT_NE(check_folder(list, options).snapshot, nullptr);
  b.change(kPatternPath, "x != 0", "x != 1");
  EXPECT_EQ(patterns_opened(), 0u);
  EXPECT_CONTAINS(findings_of(list, key), b.path(kPatternPath));
}

TEST(SignedFolder, IsListedCanonically) {
  const TestFolder folder;
  folder.write("fibshim.json", "{}");
  ours().sign_folder(folder);
  std::string expected = "fibshim manifest 1\n";
  for (const char* path : {kDefinitionPath, "fibshim.json", kPatternPath, kOtherImagePath,
                           kImagePath, kSolutionPath}) {
    const std::string bytes = folder.read(path);
    expected += sha256_hex(sha256(bytes)) + " " + std::to_string(bytes.size()) + " " + path + "\n";
  }
  EXPECT_EQ(folder.read(kManifestFile), expected);
}

struct Change {
  const char* name;
  void (*apply)(const TestFolder& folder);
  const char* place;  // of the finding, below the folder
  const char* text;

  friend void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }
};

const Change kChanges[] = {
    {"APattern", [](const TestFolder& f) { f.change(kPatternPath, "x != 0", "x != 1"); },
     kPatternPath, "not the file that was signed: its SHA-256 is "},
    {"ASolution", [](const TestFolder& f) { f.change(kSolutionPath, "rows > 0", "rows > 1"); },
     kSolutionPath, "not the file that was signed"},
    {"ADefinition", [](const TestFolder& f) { f.change(kDefinitionPath, "x * 2", "x * 3"); },
     kDefinitionPath, "not the file that was signed"},
    {"ASpaceAtTheEnd",
     [](const TestFolder& f) { f.write(kPatternPath, std::string(kPattern) + " "); }, kPatternPath,
     "not the file that was signed"},
    {"AnImageOfAnotherSm",
     [](const TestFolder& f) { f.write(kImagePath, f.read(kOtherImagePath)); }, kSolutionPath,
     "image \"scale.sm_90.cubin\": not the file that was signed"},
    {"AHardLinkToAnotherImage",
     [](const TestFolder& f) {
       f.remove(kImagePath);
       std::filesystem::create_hard_link(f.path(kOtherImagePath), f.path(kImagePath));
     },
     kSolutionPath, "image \"scale.sm_90.cubin\": not the file that was signed"},
    {"AnImageWithItsHash",
     [](const TestFolder& f) {
       f.write(kImagePath, f.read(kImagePath) + "x");
       f.write_solution(kSolution);
     },
     kSolutionPath, "not the file that was signed"},
    {"AnImageIsGone", [](const TestFolder& f) { f.remove(kImagePath); }, kImagePath,
     "signed, but gone"},
    {"APatternIsGone", [](const TestFolder& f) { f.remove(kPatternPath); }, kPatternPath,
     "signed, but gone"},
    {"ASettingIsNew", [](const TestFolder& f) { f.write("fibshim.json", "{\"mode\": \"off\"}"); },
     "fibshim.json", "not signed: fibshim.manifest does not name it"},
    {"APatternIsNew",
     [](const TestFolder& f) {
       f.write("patterns/b/more.json", replaced(kPattern, "engine-scale", "more"));
     },
     "patterns/b/more.json", "not signed: fibshim.manifest does not name it"},
    {"AFileThatIsNotEvenJson", [](const TestFolder& f) { f.write("definitions/x.json", "{"); },
     "definitions/x.json", "not signed: fibshim.manifest does not name it"},
    {"ALinkInPlaceOfAFile",
     [](const TestFolder& f) {
       f.write("blob/p.json", replaced(kPattern, "x != 0", "x != 1"));
       f.remove(kPatternPath);
       std::filesystem::create_symlink("../blob/p.json", f.path(kPatternPath));
     },
     kPatternPath, "not the file that was signed"},
    {"TheList", [](const TestFolder& f) { f.change(kManifestFile, " patterns", "  patterns"); }, "",
     "fibshim.manifest.minisig: the signature of the key 0807060504030201 does not fit"},
    {"TheListIsGone", [](const TestFolder& f) { f.remove(kManifestFile); }, "",
     "not signed: there is no fibshim.manifest,"},
    {"TheSignatureIsGone", [](const TestFolder& f) { f.remove(kManifestSignatureFile); }, "",
     "not signed: there is no fibshim.manifest.minisig,"},
    {"TheSignatureIsAFolder",
     [](const TestFolder& f) {
       f.remove(kManifestSignatureFile);
       std::filesystem::create_directory(f.path(kManifestSignatureFile));
     },
     "", "not a regular file"},
    {"TheSignatureIsOfAnotherFolder",
     [](const TestFolder& f) {
       f.write(kManifestSignatureFile, ours().sign("fibshim manifest 1\n"));
     },
     "", "does not fit"},
    {"ASignedListOfNothing",
     [](const TestFolder& f) {
       f.write(kManifestFile, "fibshim manifest 1\n");
       f.write(kManifestSignatureFile, ours().sign("fibshim manifest 1\n"));
     },
     kPatternPath, "not signed"},
    {"ASignedText",
     [](const TestFolder& f) {
       f.write(kManifestFile, "anything");
       f.write(kManifestSignatureFile, ours().sign("anything"));
     },
     "", "fibshim.manifest: signed, but not a list that this version reads"},
};

class SignedFolderWith : public testing::TestWithParam<Change> {};

TEST_P(SignedFolderWith, AChangeIsRefusedAndNamed) {
  const Change& change = GetParam();
  const TestFolder folder;
  ours().sign_folder(folder);
  change.apply(folder);
  const std::string place = change.place[0] == 0 ? folder.path() : folder.path(change.place);
  const std::string findings = findings_of(folder.path(), ours().key());
  EXPECT_EQ(findings.rfind(place, 0) == 0 || findings.find("\n" + place) != std::string::npos, true)
      << findings;
  EXPECT_CONTAINS(findings, change.text);
  EXPECT_CONTAINS(findings, "[signature]");
}
INSTANTIATE_TEST_SUITE_P(Signature, SignedFolderWith, testing::ValuesIn(kChanges), kByName);

TEST(SignedFolder, MayHoldWhatServingDoesNotRead) {
  const TestFolder folder;
  ours().sign_folder(folder);
  folder.write("traces/a.json", "{");
  folder.write("solutions/me/notes.txt", "x");
  folder.write("solutions/me/other.cubin", "x");
  folder.write("patterns/.hidden.json", "x");
  EXPECT_EQ(findings_of(folder.path(), ours().key()), "");
}

TEST(SignedFolder, IsNotReadBeforeItsSignature) {
  const TestFolder folder;
  folder.write("patterns/broken.json", "{");
  const std::string findings = findings_of(folder.path(), ours().key());
  EXPECT_LACKS(findings, "json-syntax");
}

// The shim does this at the start and at every swap.
TEST(SignedFolder, IsRequiredByTheRules) {
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  const TestFolder folder;
  char message[1024];
  const std::string key = ours().key();
  const auto open_with = [&](const char* required) {
    return SnapshotPtr(
        api.open(folder.path().c_str(), {.required_key = required}, message, sizeof message));
  };
  EXPECT_EQ(open_with(key.c_str()), nullptr);
  EXPECT_CONTAINS(std::string(message), "not signed");
  ours().sign_folder(folder);
  EXPECT_NE(open_with(key.c_str()), nullptr) << message;
  folder.change(kPatternPath, "x != 0", "x != 1");
  EXPECT_EQ(open_with(key.c_str()), nullptr);
  // If the key cannot be read, the folder is refused.
  EXPECT_EQ(open_with("/does/not/exist.pub"), nullptr);
  EXPECT_CONTAINS(std::string(message), "/does/not/exist.pub");
  EXPECT_EQ(open_with("no key"), nullptr);
}

// Our programs do this.
TEST(SignedFolder, IsRequiredByTheEnvironmentUnlessTheCallerSays) {
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  const TestFolder folder;
  char message[1024];
  const auto open_with = [&](const FolderRules& rules) {
    return SnapshotPtr(api.open(folder.path().c_str(), rules, message, sizeof message)) != nullptr;
  };
  setenv("FIBSHIM_REQUIRE_KEY", ours().key().c_str(), 1);
  setenv("FIBSHIM_TRUST", "all", 1);
  EXPECT_EQ(check_folder(folder.path()).snapshot, nullptr);
  EXPECT_TRUE(open_with({}));
  ASSERT_EQ(chmod(folder.path(kImagePath).c_str(), 0666), 0);
  EXPECT_FALSE(open_with({}));
  EXPECT_TRUE(open_with({.trust = Trust::all}));
  unsetenv("FIBSHIM_REQUIRE_KEY");
  EXPECT_NE(check_folder(folder.path()).snapshot, nullptr);
  unsetenv("FIBSHIM_TRUST");
  EXPECT_TRUE(open_with({.trust = Trust::all}));
}

// Images are read again for every device, with the trust setting that the folder was opened with.
TEST(SignedFolder, ItsImagesAreTrustedAsItWas) {
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  const TestFolder folder;
  char message[1024];
  for (const Trust trust : {Trust::owner, Trust::all}) {
    ASSERT_EQ(chmod(folder.path(kImagePath).c_str(), 0644), 0);
    const SnapshotPtr snapshot(
        api.open(folder.path().c_str(), {.trust = trust}, message, sizeof message));
    ASSERT_NE(snapshot, nullptr) << message;
    ASSERT_EQ(chmod(folder.path(kImagePath).c_str(), 0666), 0);
    ImageBytes bytes{};
    const int code = api.read_image(snapshot.get(), 0, 0, &bytes, message, sizeof message);
    EXPECT_EQ(code == 0, trust == Trust::all) << message;
    api.release_image(&bytes);
  }
}

}  // namespace
}  // namespace fibshim
