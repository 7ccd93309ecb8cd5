#!/usr/bin/env python3
"""step.svg of what tests/gpu/engine_timeline.py wrote: a decode step of vLLM as a stack of its kernels, by folder and batch.

  tests/bench/step.py OUT.json [STEP.svg] [--batches N,N...]

A kernel's part of a bar is what it adds to the step, from the last end before it to its own, summed up over the layers.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
# The matrix products of a layer, in their order after attention. Other kinds are found by the kernel's name; the first
# that fits counts.
PRODUCTS = ("o", "gate, up", "down", "qkv")
IS_PRODUCT = re.compile(r"nvjet|^gemm_|gemv|cutlass.*gemm", re.IGNORECASE)
OTHERS = {"KV write": r"reshape_and_cache|append_paged", "attention": r"flash|paged_decode|attention", "sums of parts": r"splitk_?reduce",
          "norms": r"norm", "silu·mul": r"silu", "RoPE": r"rope|rotary|^triton_poi_fused_\d+$"}
KINDS = (*PRODUCTS, *OTHERS, "rest")
MOST_LEFT_WITHOUT_NUMBER = 0.03  # of the highest bar


def stack_of(kernels):
    """Microseconds by kind. `kernels`: rows of name, gap, time and what it adds."""
    out = dict.fromkeys(KINDS, 0.0)
    products = len(PRODUCTS) - 1  # since the last attention; before the first one comes qkv
    for name, _, _, adds in kernels:
        kind = next((kind for kind, words in OTHERS.items() if re.search(words, name, re.IGNORECASE)), "rest")
        if kind == "rest" and IS_PRODUCT.search(name):
            kind = PRODUCTS[products] if products < len(PRODUCTS) else "rest"
            products += 1
        elif kind == "attention":
            products = 0
        out[kind] += adds
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timeline", type=pathlib.Path)
    parser.add_argument("svg", nargs="?", type=pathlib.Path, default=HERE / "step.svg")
    parser.add_argument("--batches", help="only these")
    args = parser.parse_args()
    steps = json.loads(args.timeline.read_text())
    batch_of = lambda name: int(name.rpartition("batch ")[2])
    wanted = {int(batch) for batch in args.batches.split(",")} if args.batches else set(map(batch_of, steps))
    bars = sorted((name for name in steps if batch_of(name) in wanted), key=batch_of)  # folders keep their order
    if not bars:
        parser.error(f"{args.timeline} has no such batch")
    stacks = {name: stack_of(steps[name]["kernels"]) for name in bars}
    highest = max(sum(stack.values()) for stack in stacks.values())
    kinds = [kind for kind in KINDS if any(stack[kind] for stack in stacks.values())]
    with tempfile.TemporaryDirectory() as folder:
        bar_lines, number_lines = ["\t".join(("bar", *kinds))], []
        for at, name in enumerate(bars):
            batch = batch_of(name)
            place = at + 0.6 * sum(batch_of(a) != batch_of(b) for a, b in zip(bars, bars[1:at + 1]))  # batches stand apart
            label = f"{name.split(', ')[0]}\\nbatch {batch}"
            heights, top = [], 0.0
            for kind in kinds:
                height = stacks[name][kind]
                top += height
                heights.append(f"{top:.2f}")
                if height > MOST_LEFT_WITHOUT_NUMBER * highest:
                    number_lines.append(f"{place}\t{top - height / 2:.2f}\t{height:,.0f}\tinside")
            number_lines.append(f"{place}\t{top:.2f}\t{steps[name]['step_us']:,.0f}\tabove")
            bar_lines.append("\t".join((str(place), *heights, label)))
        pathlib.Path(folder, "step.tsv").write_text("\n".join(bar_lines) + "\n")
        pathlib.Path(folder, "step_numbers.tsv").write_text("\n".join(number_lines) + "\n")
        subprocess.run(["gnuplot", "-e", f"folder='{folder}'; svg='{args.svg}'; kinds={len(kinds)}", HERE / "step.gp"], check=True)


main()
