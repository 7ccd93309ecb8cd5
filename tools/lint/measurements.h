// measurements.json of a config folder: the times of its solutions on GPUs, beside those of the
// kernels they replace. `fibshim bench --keep` writes it, `fibshim check` reads it; serving does
// not. fibshim-config(5) describes it.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

inline constexpr char kMeasurementsFile[] = "measurements.json";

struct MeasuredTime {
  std::map<std::string, int64_t> axes;  // the variable axes
  double us = 0, p10_us = 0, p90_us = 0;
  double original_us = 0;  // 0: not timed
};

// The times of one solution with one GPU, driver, mode and original.
struct Measurement {
  std::string definition, solution;
  std::string images;  // images_digest() of the measured solution
  std::string gpu;
  int64_t sm = 0;
  std::string driver, date, mode;
  std::string original;  // the kernel that was timed beside it; "": none
  std::vector<MeasuredTime> times;
};

// Identifies what a solution runs: a hash over the code of its kernel in each image or, for an image that is no cubin, the
// image's sum. The image's other kernels make no difference.
std::string images_digest(const FolderModel& model, const SolutionSpec& solution);

// Reports faults under Rule::schema, and then returns nothing. `file`: the file as Marks name it.
std::vector<Measurement> parse_measurements(std::string_view text, const std::string* file,
                                            Diagnostics* diagnostics);
std::string measurements_text(const std::vector<Measurement>& measurements);

// Merges a newer measurement: its times replace those of the same axes. If the earlier times of the
// same definition, solution, GPU, mode and original are of other images or another driver, it
// replaces all of them. What other images of the solution took is dropped, on whatever GPU.
void merge_measurement(Measurement newer, std::vector<Measurement>* measurements);

// Reports files of measurements that cannot be read.
void find_measurement_faults(const FolderModel& model, Diagnostics* diagnostics);

// The same, and reports solutions and GPUs without times, and sizes at which a solution is the
// slower one.
void report_measurements(const FolderModel& model, Diagnostics* diagnostics);

}  // namespace fibshim
