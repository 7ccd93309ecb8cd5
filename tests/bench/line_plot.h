// A line plot as SVG text: enough for the figures that `make bench` writes.
#ifndef FIBSHIM_TESTS_BENCH_LINE_PLOT_H_
#define FIBSHIM_TESTS_BENCH_LINE_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace fibshim::bench {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; by rising x
  bool is_dashed = false;                         // a reference, not a measurement
};

struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Line> lines;
};

// Both axes are logarithmic, base 2, so that linear growth is a straight line. Every x and y > 0.
std::string to_svg(const LinePlot& plot);

}  // namespace fibshim::bench

#endif  // FIBSHIM_TESTS_BENCH_LINE_PLOT_H_
