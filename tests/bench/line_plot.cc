#include "tests/bench/line_plot.h"

#include <math.h>
#include <stdio.h>

#include <algorithm>

namespace fibshim::bench {
namespace {

constexpr double kWidth = 760, kHeight = 460;
constexpr double kLeft = 70, kRight = 540, kTop = 45, kBottom = 400;
constexpr const char* kColours[] = {"#4c4c4c", "#1f77b4", "#d95f02", "#1b9e77", "#7570b3",
                                    "#e7298a", "#66a61e", "#a6761d", "#17becf"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += c;
    }
  }
  return out;
}

template <class... Arguments>
void add(std::string* svg, const char* format, Arguments... arguments) {
  char text[512];
  snprintf(text, sizeof text, format, arguments...);
  *svg += text;
}

void add_text(std::string* svg, double x, double y, const char* style, const std::string& text) {
  add(svg, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
  *svg += escaped(text) + "</text>\n";
}

// One axis: log2 of the value, from `low` to `high`, onto pixels.
struct Scale {
  double low, high, first, last;
  double operator()(double value) const {
    return first + (log2(value) - low) / (high - low) * (last - first);
  }
};

Scale scale_of(const LinePlot& plot, bool is_x, double first, double last) {
  double low = INFINITY;
  double high = -INFINITY;
  for (const Line& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      low = std::min(low, log2(is_x ? x : y));
      high = std::max(high, log2(is_x ? x : y));
    }
  }
  low = floor(low);
  high = std::max(ceil(high), low + 1);
  return {low, high, first, last};
}

}  // namespace

std::string to_svg(const LinePlot& plot) {
  const Scale x = scale_of(plot, true, kLeft, kRight);
  const Scale y = scale_of(plot, false, kBottom, kTop);
  std::string svg;
  add(&svg,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  add_text(&svg, (kLeft + kRight) / 2, 24, "text-anchor=\"middle\" font-size=\"15\"", plot.title);
  for (double exponent = x.low; exponent <= x.high; ++exponent) {
    const double at = x(exp2(exponent));
    add(&svg, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#ddd\"/>\n", at, kTop, kBottom);
    char label[32];
    snprintf(label, sizeof label, "%g", exp2(exponent));
    add_text(&svg, at, kBottom + 18, "text-anchor=\"middle\"", label);
  }
  for (double exponent = y.low; exponent <= y.high; ++exponent) {
    const double at = y(exp2(exponent));
    add(&svg, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>\n", kLeft, at, kRight);
    char label[32];
    snprintf(label, sizeof label, "%g", exp2(exponent));
    add_text(&svg, kLeft - 8, at + 4, "text-anchor=\"end\"", label);
  }
  add_text(&svg, (kLeft + kRight) / 2, kBottom + 42, "text-anchor=\"middle\"", plot.x_label);
  char turned[96];
  snprintf(turned, sizeof turned, "text-anchor=\"middle\" transform=\"rotate(-90 18 %.1f)\"",
           (kTop + kBottom) / 2);
  add_text(&svg, 18, (kTop + kBottom) / 2, turned, plot.y_label);

  double legend_y = kTop + 8;
  size_t colour = 0;
  for (const Line& line : plot.lines) {
    const char* stroke = line.is_dashed ? "#999" : kColours[colour++ % std::size(kColours)];
    const char* dash = line.is_dashed ? " stroke-dasharray=\"5 4\"" : "";
    svg += "<path d=\"";
    for (size_t i = 0; i < line.points.size(); ++i) {
      add(&svg, "%c%.1f %.1f", i == 0 ? 'M' : 'L', x(line.points[i].first),
          y(line.points[i].second));
    }
    add(&svg, "\" fill=\"none\" stroke-width=\"1.8\" stroke=\"%s\"%s/>\n", stroke, dash);
    for (const auto& [at_x, at_y] : line.points) {
      if (line.is_dashed) break;
      add(&svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"/>\n", x(at_x), y(at_y),
          stroke);
    }
    add(&svg, "<path d=\"M%.1f %.1fh22\" stroke-width=\"1.8\" stroke=\"%s\"%s/>\n", kRight + 14,
        legend_y, stroke, dash);
    add_text(&svg, kRight + 42, legend_y + 4, "", line.name);
    legend_y += 19;
  }
  return svg + "</svg>\n";
}

}  // namespace fibshim::bench
