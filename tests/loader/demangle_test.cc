// Readable names of symbols, including symbols that are made to have endless ones.
#include "loader/read/demangle.h"

#include <gtest/gtest.h>

namespace fibshim {
namespace {

TEST(Demangle, ReadsSymbols) {
  EXPECT_EQ(demangle("_Z5scalePfPKfif"), "scale(float*, float const*, int, float)");
  EXPECT_EQ(demangle("scale"), "");
  EXPECT_EQ(demangle("i"), "");  // a type
  EXPECT_EQ(demangle("_Z5scale("), "");
  EXPECT_EQ(demangle(""), "");
}

TEST(Demangle, GivesUpOnNamesWithoutEnd) {
  // f(pair<int, int>, pair<pair<int, int>, pair<int, int>>, ...): each is twice as long as the one
  // before.
  std::string symbol = "_Z1fSt4pairIiiES_IS0_S0_E";
  const auto pairs = [&](const std::string& ids) {
    for (const char id : ids) {
      const std::string one = std::string("S") + id + "_";
      symbol += "S_I" + one + one + "E";
    }
  };
  pairs("123");
  EXPECT_GT(demangle(symbol).size(), 400u);
  pairs("456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");
  EXPECT_LT(symbol.size(), 500u);
  EXPECT_EQ(demangle(symbol), "");
}

}  // namespace
}  // namespace fibshim
