#!/usr/bin/env python3
"""What `kernels.py --times FILE` measured, as Markdown: for each kernel that is replaced and each width the
replacement's microseconds and how many times faster it is, by rows.

    kernel_table.py FILE
"""
import json
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


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    with open(sys.argv[1], encoding="utf-8") as file:
        times = json.load(file)
    print("\n\n".join(table(name, cells) for name, cells in times.items()))


if __name__ == "__main__":
    main()
