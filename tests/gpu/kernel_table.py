#!/usr/bin/env python3
"""What `kernels.py --times FILE` measured, as Markdown: for each kernel that is replaced and each width the
replacement's microseconds and how many times faster it is, by rows. With --plot also draws the speedups, the
geometric mean over the widths, as an SVG.

    kernel_table.py FILE [--plot SVG]
"""
import json
import math
import sys


def table(name, cells):
    rows = sorted({cell["rows"] for cell in cells})
    by_place = {(cell["size"], cell["rows"]): cell for cell in cells}
    lines = [f"| {name} | " + " | ".join(f"{count}" for count in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for size in sorted({cell["size"] for cell in cells}):
        found = [by_place.get((size, count)) for count in rows]
        texts = ["" if cell is None else f"{cell['ours_us']:.1f} ({cell['speedup']:.2f})" for cell in found]
        lines.append(f"| {size} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#e6ab02", "#1f77b4", "#a6761d", "#666666", "#17becf",
           "#9467bd")


def plot(times):
    """Speedup by rows, both axes logarithmic: one line for each kernel that is replaced."""
    most = max(cell["rows"] for cells in times.values() for cell in cells)

    def x(rows):
        return 60 + 480 * math.log2(rows) / math.log2(most)

    def y(speedup):
        return 360 - 330 * math.log2(max(speedup, 0.9) / 0.9) / math.log2(20 / 0.9)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 410" font-family="sans-serif" font-size="12">',
           '<rect width="900" height="410" fill="#ffffff"/>']
    for speedup in (1, 2, 4, 8, 16):
        out.append(f'<path d="M60 {y(speedup):.1f} H540" stroke="{"#888888" if speedup == 1 else "#e4e4e4"}"/>'
                   f'<text x="52" y="{y(speedup) + 4:.1f}" text-anchor="end">{speedup}</text>')
    for rows in sorted({cell["rows"] for cells in times.values() for cell in cells}):
        out.append(f'<text x="{x(rows):.1f}" y="378" font-size="10" text-anchor="middle">{rows}</text>')
    out.append('<text x="300" y="400" text-anchor="middle">rows</text>'
               '<text x="60" y="18">times faster than the replaced kernel (geometric mean over widths)</text>')
    for i, (name, cells) in enumerate(times.items()):
        speedups = {}
        for cell in cells:
            speedups.setdefault(cell["rows"], []).append(math.log2(cell["speedup"]))
        points = [f"{x(rows):.1f},{y(2 ** (sum(logs) / len(logs))):.1f}" for rows, logs in sorted(speedups.items())]
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[i % len(COLOURS)]}" '
                   f'stroke-width="2"/><path d="M565 {40 + 24 * i} h24" stroke="{COLOURS[i % len(COLOURS)]}" '
                   f'stroke-width="2"/><text x="596" y="{44 + 24 * i}">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    if len(sys.argv) not in (2, 4) or (len(sys.argv) == 4 and sys.argv[2] != "--plot"):
        sys.exit(__doc__.strip())
    with open(sys.argv[1], encoding="utf-8") as file:
        times = json.load(file)
    print("\n\n".join(table(name, cells) for name, cells in times.items()))
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w", encoding="utf-8") as file:
            file.write(plot(times))


if __name__ == "__main__":
    main()
