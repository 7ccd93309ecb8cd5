// Every fuzz target on the inputs of its corpus, in the build that is tested: what broke a reader once does not
// break it again. `make fuzz` does the same under sanitizers and looks for new inputs.
#include <gtest/gtest.h>
#include <stdint.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#define TARGET(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
FUZZ_TARGETS
#undef TARGET

namespace fibshim {
namespace {

void replay(const std::string& target, int (*read)(const uint8_t* data, size_t size)) {
  int count = 0;
  const std::string corpus = std::string(FUZZ_FOLDER) + "/corpus/" + target;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    SCOPED_TRACE(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(read(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
    ++count;
  }
  EXPECT_GT(count, 0);
}

#define TARGET(name) \
  TEST(Corpus, name) { replay(#name, fuzz_##name); }
FUZZ_TARGETS

}  // namespace
}  // namespace fibshim
