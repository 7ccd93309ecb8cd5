// What the fuzz targets share. A target feeds one reader with bytes as they come and asks more of it
// than not to crash: what must hold is said with require().
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

// The function of a target, NAME_fuzz.cc: libFuzzer's, or one of its own name in a program of all of them.
#ifdef FUZZ_TARGETS
#define FUZZ_FUNCTION(name) fuzz_##name
#else
#define FUZZ_FUNCTION(name) LLVMFuzzerTestOneInput
#endif
#define FUZZ_TARGET(name)                                               \
  extern "C" int FUZZ_FUNCTION(name)(const uint8_t* data, size_t size); \
  extern "C" int FUZZ_FUNCTION(name)(const uint8_t* data, size_t size)

namespace fibshim::fuzz {

// libFuzzer keeps the input of a process that aborts.
inline void require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "does not hold: %s\n", what);
  abort();
}

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// What comes before the next `end`, which is taken off too; all of it when there is none.
inline std::string_view take_until(std::string_view* rest, char end) {
  const size_t length = std::min(rest->find(end), rest->size());
  const std::string_view part = rest->substr(0, length);
  rest->remove_prefix(std::min(length + 1, rest->size()));
  return part;
}

// A file that is whole with changes to it, for formats in which chance makes nothing that is read
// beyond the first check. A change: what kind it is, its place (3 bytes), and what comes there.
inline std::string with_changes(std::string bytes, std::string_view changes) {
  const auto take = [&](size_t count) {
    uint64_t value = 0;
    memcpy(&value, changes.data(), std::min(count, changes.size()));
    changes.remove_prefix(std::min(count, changes.size()));
    return value;
  };
  while (!changes.empty()) {
    const uint64_t kind = take(1) % 8;
    const size_t at = take(3) % (bytes.size() + 1);
    const size_t length = std::min(size_t{1} << kind % 4, bytes.size() - at);
    if (kind < 4) {  // another number of 1, 2, 4 or 8 bytes
      const uint64_t value = take(length);
      memcpy(bytes.data() + at, &value, length);
    } else if (kind == 4) {  // a little more or less
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] + static_cast<char>(take(1)));
    } else if (kind == 5) {
      bytes.resize(at);
    } else if (kind == 6) {  // the same as elsewhere
      const size_t from = take(3) % (bytes.size() + 1);
      memmove(bytes.data() + at, bytes.data() + from, std::min(length, bytes.size() - from));
    } else {
      bytes.append(take(2) % 4096, '\0');
    }
  }
  return bytes;
}

// A folder in memory, where there is one, that goes with the process.
class ScratchFolder {
 public:
  ScratchFolder() {
    const char* const wanted = getenv("TMPDIR");
    std::string pattern = wanted != nullptr ? wanted : "/dev/shm";
    pattern += "/fuzz-XXXXXX";
    require(mkdtemp(pattern.data()) != nullptr, "there is room for a folder");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

  // Its folder is made where there is none.
  void write(const std::string& relative, std::string_view bytes) const {
    const std::string path = path_ + "/" + relative;
    FILE* file = fopen(path.c_str(), "we");
    if (file == nullptr) {
      std::error_code error;
      std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
      file = fopen(path.c_str(), "we");
    }
    require(file != nullptr && fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
                fclose(file) == 0,
            "a file can be written");
  }

 private:
  std::string path_;
};

}  // namespace fibshim::fuzz
