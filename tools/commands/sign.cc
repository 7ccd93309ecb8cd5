// fibshim sign: says of a config folder, with a key, that it is this one. `check --key` and
// FIBSHIM_REQUIRE_KEY ask for it. Keys and signatures are minisign's.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <fmt/format.h>
#include <sodium.h>

#include "loader/check/check.h"
#include "loader/read/file.h"
#include "loader/check/index.h"
#include "loader/read/manifest.h"
#include "tools/base/atomic_file.h"
#include "tools/base/commands.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/file_descriptor.h"
#include "tools/base/options.h"
#include "tools/base/secret_key.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

// From the terminal without an echo, else a line of standard input.
tl::expected<std::string, std::string> ask_password(const char* prompt) {
  if (isatty(STDIN_FILENO) != 0) {
    char* const typed = getpass(prompt);
    if (typed == nullptr) return tl::unexpected(std::string("no password was given"));
    std::string password = typed;
    sodium_memzero(typed, password.size());
    return password;
  }
  char line[1024];
  if (fgets(line, sizeof line, stdin) == nullptr) {
    return tl::unexpected(std::string("no password was given: it is read from standard input"));
  }
  std::string password = line;
  sodium_memzero(line, sizeof line);
  if (!password.empty() && password.back() == '\n') password.pop_back();
  return password;
}

// Never over a file that is there: a secret key cannot be made again.
std::string write_new_file(const std::string& path, std::string_view text, mode_t mode) {
  const FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) return strerror(errno);
  if (write_all(file.get(), text) && fsync(file.get()) == 0) return "";
  std::string reason = strerror(errno);
  (void)unlink(path.c_str());
  return reason;
}

int generate_key(const std::string& name, bool has_password) {
  const auto failed = [](const std::string& why) {
    print_message("sign", why);
    return kExitWrong;
  };
  std::string password;
  if (has_password) {
    auto given = ask_password("Password of the new key: ");
    if (!given) return failed(given.error());
    password = std::move(*given);
    if (password.empty()) return failed("an empty password; --no-password makes a key without one");
    if (isatty(STDIN_FILENO) != 0) {
      const auto again = ask_password("The same once more: ");
      if (!again || *again != password) return failed("the passwords differ");
    }
  }
  const SecretKey key = SecretKey::generate();
  auto secret = key.text(password);
  sodium_memzero(password.data(), password.size());
  if (!secret) return failed(secret.error());
  const std::string public_text = public_key_text(key.public_key());
  const std::string secret_path = name + ".key";
  const std::string public_path = name + ".pub";
  std::string reason = write_new_file(secret_path, *secret, 0600);
  sodium_memzero(secret->data(), secret->size());
  if (!reason.empty()) return failed(fmt::format("{}: {}", printable(secret_path), reason));
  reason = write_new_file(public_path, public_text, 0644);
  if (!reason.empty()) {
    (void)unlink(secret_path.c_str());
    return failed(fmt::format("{}: {}", printable(public_path), reason));
  }
  print_message("sign", fmt::format("{} signs and stays secret; {} is for those who check",
                                    printable(secret_path), printable(public_path)));
  return print_data(public_text.substr(public_text.find('\n') + 1)) ? kExitFine : kExitWrong;
}

// Empty, or why it was not signed.
std::string sign_folder(const std::string& folder, const SecretKey& key) {
  CheckOptions options;
  options.required_key.clear();  // this makes the signature
  options.wants_entries = true;
  const CheckReport report = check_folder(folder, options);
  if (report.error_count > 0) {
    std::string text = format_findings(report) + format_summary(folder, report);
    text.pop_back();
    return fmt::format("the config folder has mistakes:\n{}\nNothing was signed", text);
  }
  std::vector<ManifestEntry> entries = report.manifest.entries;
  const OpenedIndex index = open_index(folder, {"", true});
  if (index.snapshot != nullptr) entries.push_back(index.entry);
  const auto manifest = manifest_text(entries);
  if (!manifest) return printable(manifest.error().message);
  const std::string comment =
      fmt::format("timestamp:{}\tfile:{}\thashed", time(nullptr), kManifestFile);
  // Between the two no signature fits: who looks then refuses the folder.
  for (const auto& [name, text] :
       {std::pair{kManifestFile, *manifest},
        std::pair{kManifestSignatureFile, key.sign(*manifest, comment)}}) {
    const std::string path = folder + "/" + name;
    const std::string reason = write_file_atomically(path, text, 0644);
    if (!reason.empty()) return fmt::format("{}: {}", printable(path), reason);
  }
  print_message(
      "sign",
      fmt::format("{}: {} files signed with the key {}{}", printable(folder), entries.size(),
                  key_id_text(key.public_key().id),
                  index.refusal.empty() ? "" : "; not the index: " + printable(index.refusal)));
  return "";
}

}  // namespace

int sign_command(int argc, const char* const* argv) {
  CLI::App app("Signs config folders, so that they can be told from changed ones", "fibshim sign");
  std::vector<std::string> folders;
  std::string key_path;
  std::string new_key;
  bool has_no_password = false;
  app.add_option("DIR", folders, "config folders")->type_name("");
  app.add_option("-k,--key", key_path, "secret key, of this program or of minisign")
      ->type_name("FILE");
  auto* const generates =
      app.add_option("--generate-key", new_key, "make a key: NAME.key, secret, and NAME.pub")
          ->type_name("NAME");
  app.add_flag("--no-password", has_no_password, "the new key is not encrypted")->needs(generates);
  app.footer(
      "Exit codes: 0 signed; 1 a folder has mistakes, or the key cannot be used; 2 wrong usage.");
  if (int exit_code = 0; !parse_options(&app, "--key FILE DIR...", argc, argv, &exit_code))
    return exit_code;
  if (sodium_init() < 0) {
    print_message("sign", "no random numbers can be had");
    return kExitWrong;
  }
  if (generates->count() > 0) {
    if (!folders.empty() || !key_path.empty()) {
      return usage_error("sign", "--generate-key takes neither a folder nor --key");
    }
    return generate_key(new_key, !has_no_password);
  }
  if (key_path.empty()) return usage_error("sign", "name the secret key with --key");
  if (folders.empty()) return usage_error("sign", "name at least one config folder");
  auto text = read_file(key_path, kMaxKeyFileBytes);
  if (!text) {
    print_message("sign", printable(text.error().message));
    return kExitWrong;
  }
  const auto key = SecretKey::parse(*text, [] { return ask_password("Password of the key: "); });
  sodium_memzero(text->data(), text->size());
  if (!key) {
    print_message("sign", fmt::format("{}: {}", printable(key_path), key.error()));
    return kExitWrong;
  }
  bool is_signed = true;
  for (const std::string& folder : folders) {
    const std::string why = sign_folder(folder, *key);
    if (why.empty()) continue;
    is_signed = false;
    print_message("sign", fmt::format("{}: {}", printable(folder), why));
  }
  return is_signed ? kExitFine : kExitWrong;
}

}  // namespace fibshim::tools
