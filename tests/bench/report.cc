#include "tests/bench/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>

#include "tests/support/process.h"

namespace fibshim::bench {
namespace {

FILE* g_report;

}  // namespace

void open_report() {
  g_report = fopen(in_bench("report.txt").c_str(), "w");
  if (g_report == nullptr) throw std::runtime_error(in_bench("report.txt: cannot be written"));
}

void say(const char* format, ...) {
  for (FILE* out : {stdout, g_report}) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fflush(out);
  }
}

const char* verdict(bool is_met) { return is_met ? "met" : "NOT MET"; }

std::string in_bench(const std::string& name) { return build_dir() + "/bench/" + name; }

void write_file(const std::string& name, const std::string& text) {
  const std::string path = in_bench(name);
  std::ofstream(path + ".new", std::ios::trunc) << text;
  if (rename((path + ".new").c_str(), path.c_str()) != 0) {
    throw std::runtime_error(path + ": " + strerror(errno));
  }
}

double rounded(double value, double to) { return static_cast<double>(llround(value / to)) * to; }
double tenths(double value) { return static_cast<double>(llround(value * 10)) / 10; }
double hundredths(double value) { return static_cast<double>(llround(value * 100)) / 100; }

Preload no_preload() { return {}; }
Preload forwarder() { return {in_bench("libforwarder.so"), ""}; }
Preload shim(const std::string& config) { return {build_dir() + "/lib/libfibshim.so", config}; }

const Samples& find(const Results& results, const std::string& prefix) {
  const auto found = results.lower_bound(prefix);
  if (found == results.end() || !found->first.starts_with(prefix)) {
    throw std::runtime_error("no benchmark is named " + prefix);
  }
  return found->second;
}

double time_ns(const Results& results, const std::string& prefix) {
  return median(find(results, prefix).time_ns);
}

std::string filter(const std::string& regex) { return "--benchmark_filter=" + regex; }

}  // namespace fibshim::bench
