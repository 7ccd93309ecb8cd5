// What nearly every test includes, which make compiles once (tests.mk). A test names what it needs itself all the same.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
