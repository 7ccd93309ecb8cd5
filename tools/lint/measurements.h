// measurements.json of a config folder: how long its solutions took on which GPU, beside what they replace.
// `fibshim bench --keep` writes it, `fibshim check` reads it; serving does not. fibshim-config(5) describes it.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

inline constexpr char kMeasurementsFile[] = "measurements.json";

struct MeasuredTime {
  std::map<std::string, int64_t> axes;  // the variable ones
  double us = 0, p10_us = 0, p90_us = 0;
  double original_us = 0;  // 0: not timed
};

// Of one solution, under one set of circumstances.
struct Measurement {
  std::string definition, solution;
  std::string images;  // images_digest() of what was measured
  std::string gpu;
  int64_t sm = 0;
  std::string driver, date, mode;
  std::string original;  // ""; not timed beside any
  std::vector<MeasuredTime> times;
};

// Which images a solution has: a hash over their sums.
std::string images_digest(const SolutionSpec& solution);

// What is wrong is reported under Rule::schema, and nothing is read then. `file`: as Marks have it.
std::vector<Measurement> parse_measurements(std::string_view text, const std::string* file,
                                            Diagnostics* diagnostics);
std::string measurements_text(const std::vector<Measurement>& measurements);

// Takes the newer one in: its times replace those of the same axes, and all that was measured before under the
// same name of other images, or with another driver.
void merge_measurement(Measurement newer, std::vector<Measurement>* measurements);

// Solutions and GPUs of which there are no times, and sizes at which a solution is the slower one.
void report_measurements(const FolderModel& model, Diagnostics* diagnostics);

}  // namespace fibshim
