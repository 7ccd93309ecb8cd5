// Shared by the tables of `make bench`: prints, writes files beside the programs, reads results.
#pragma once

#include <string>

#include "tests/bench/measure.h"

namespace fibshim::bench {

// Begins report.txt. Throws std::runtime_error.
void open_report();

// Prints to standard output and report.txt.
__attribute__((format(printf, 1, 2))) void say(const char* format, ...);

const char* verdict(bool is_met);

// A path in build/bench.
std::string in_bench(const std::string& name);

// Replaces a file of build/bench atomically. Throws std::runtime_error.
void write_file(const std::string& name, const std::string& text);

double rounded(double value, double to);
double tenths(double value);
double hundredths(double value);

Preload no_preload();
Preload forwarder();
Preload shim(const std::string& config);

// The first benchmark whose name begins with `prefix`. Throws std::runtime_error if there is none.
const Samples& find(const Results& results, const std::string& prefix);
double time_ns(const Results& results, const std::string& prefix);  // its median

// The argument that selects the benchmarks whose names fit.
std::string filter(const std::string& regex);

}  // namespace fibshim::bench
