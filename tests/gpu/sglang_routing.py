#!/usr/bin/env python3
"""SGLang's routing of tokens to experts on the GPU: its kernels in captured graphs, alone, and as one under the shim.

  tests/gpu/sglang_routing.py BUILD [--out FILE] [--keep FILE] [--no-times]

SGLang 0.5.23 and its sglang-kernel must be importable: their own functions launch the kernels, and compile those of Triton. Each side
is a process of its own and makes the same inputs. All bytes that SGLang's kernels write must be the same, but for the order of an
expert's choices where SGLang leaves that open; what they leave unwritten behind the blocks must be padding, and nothing may be written
beside the outputs. More than 64 tokens stay SGLang's. As one the kernels must not be slower.
"""
import argparse
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch

from counters import read_stats
from graph_time import graph_us, nodes_for
from kept_times import NOISE, KeptTimes, finish
from report import Report
from sides import run_side

EXPERTS, TOPK = 128, 8
BLOCK_SIZES = (16, 32, 64)
TOKENS = (*range(1, 65), 65, 128, 512)
MOST_TOKENS = 64  # that are one
TIMED = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
KINDS = ("normal", "ties", "odd")  # as drawn; many alike; with what is no number
FEW = 64  # choices that SGLang sorts by one kernel
CHECKED_S = 6
GUARD, POISON = 64, 0x55555555  # elements before and behind each output
MOVED_BYTES = 1 << 16


def padded_of(tokens, block_size):
    choices = tokens * TOPK
    return (choices + min(choices, EXPERTS + 1) * (block_size - 1) + 3) // 4 * 4


def keep(kept, key, us, original_us):
    tokens, block_size, _ = key
    padded = padded_of(tokens, block_size)
    kept.add(f"moe_routing_by_logit_e{EXPERTS}_k{TOPK}_b{block_size}_n1", "SGLang", us, original_us, num_tokens=tokens,
             max_num_tokens_padded=padded, max_num_blocks=-(-padded // block_size))


def name_of(key):
    return "{} tokens, blocks of {}, {}".format(*key)


class Case:
    def __init__(self, key):
        self.tokens, self.block_size, kind = key
        generator = torch.Generator(device="cuda").manual_seed(100 * self.tokens + self.block_size)
        logits = 2 * torch.randn(self.tokens, EXPERTS, generator=generator, device="cuda")
        if kind == "ties":
            logits = logits.round()
        if kind == "odd":
            logits[0::5, 5] = float("nan")
            logits[1::5, 3] = float("inf")
            logits[2::5, ::2] = -float("inf")
            logits[3::5] = -float("inf")
            logits[4::5] = 0.0
            logits[4::5, ::3] = -0.0
        self.logits = logits.to(torch.bfloat16)
        padded = padded_of(self.tokens, self.block_size)
        lengths = {"sorted": padded, "expert_ids": -(-padded // self.block_size), "total": 1, "cumsum": EXPERTS + 2}
        self.memory = {name: torch.empty(length + 2 * GUARD, dtype=torch.int32, device="cuda") for name, length in lengths.items()}

    def run(self):
        from sglang.kernels.ops.moe import moe_align_block_size
        from sglang.kernels.ops.moe.moe_align_small_numel import moe_align_small_numel
        from sglang.kernels.ops.moe.moe_fused_gate import moe_fused_gate
        self.weights, self.ids = moe_fused_gate(self.logits, None, TOPK, scoring_func="softmax", renormalize=True)
        into = {name: memory[GUARD:-GUARD] for name, memory in self.memory.items()}
        outputs = [into[name] for name in ("sorted", "expert_ids", "total")]
        if self.ids.numel() <= FEW:
            moe_align_small_numel(self.ids, EXPERTS + 1, self.block_size, *outputs)
        else:
            moe_align_block_size(self.ids, EXPERTS + 1, self.block_size, *outputs, into["cumsum"], True, False)

    def captured(self):
        self.run()  # compiles what has to be
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        return graph

    def outputs(self, graph):
        for memory in (*self.memory.values(), self.ids, self.weights.view(torch.int32)):
            memory.fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        return {"weights": self.weights.cpu(), "ids": self.ids.cpu(), **{name: memory.cpu() for name, memory in self.memory.items()}}


def compare(key, his, mine):
    """What is wrong with the outputs as one."""
    tokens, block_size, _ = key
    padding = {"sorted": tokens * TOPK, "expert_ids": -1, "total": None, "cumsum": POISON}
    problems = []
    differ = (his["weights"] != mine["weights"]) & ~(his["weights"].isnan() & mine["weights"].isnan())
    if differ.any():
        share = ((his["weights"] - mine["weights"]).abs() / his["weights"].abs())[differ].max().item()
        problems.append(f"{differ.sum().item()} of {differ.numel()} weights differ, by {share:.1e} of them at most")
    if not torch.equal(his["ids"], mine["ids"]):
        problems.append("other experts")
    for name, fill in padding.items():
        parts = []
        for side in (his, mine):
            if not torch.equal(side[name][:GUARD], side[name][-GUARD:]) or (side[name][:GUARD] != POISON).any():
                problems.append(f"{'SGLang' if side is his else 'ours'} has written beside {name}")
            parts.append(side[name][GUARD:-GUARD].clone())
        if name == "sorted" and tokens * TOPK > FEW:
            blocks = his["total"][GUARD].item() // block_size
            for part in parts:
                begin = 0
                for _, of_expert in itertools.groupby(his["expert_ids"][GUARD:GUARD + blocks].tolist()):
                    end = begin + block_size * sum(1 for _ in of_expert)
                    part[begin:end] = part[begin:end].sort().values
                    begin = end
        expected, found = parts
        if fill is not None:
            expected[expected == POISON] = fill if tokens <= MOST_TOKENS else POISON
        if not torch.equal(expected, found):
            problems.append(f"{name}: {(expected != found).sum().item()} of {len(found)} differ")
    return [f"{name_of(key)}: {problem}" for problem in problems]


def replay_checked():
    """Graphs replayed for a while: the shim checks the launches of them that it has got ready."""
    cases = [Case(key) for key in itertools.product((1, 7, 9, 64), BLOCK_SIZES[:1], KINDS[:2])]
    graphs = [case.captured() for case in cases]
    end = time.monotonic() + CHECKED_S
    while time.monotonic() < end:
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()


def check_shadow(report, command, environment):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--child", "-", "--checked"], check=True,
                       env={**os.environ, **environment, "FIBSHIM_STATS_DIR": folder, "FIBSHIM_SHADOW": "1/1"})
        rows = read_stats(folder)["shadow"]
    checks = sum(row["checks"] for row in rows)
    report.check(f"{checks} checks at 1/1, and no mismatch",
                 ([] if checks else ["no check"]) + [f"{row['shape']}: {row['mismatches']} of {row['checks']}" for row in rows if row["mismatches"]])


def child(args):
    torch.zeros(1, device="cuda")
    if args.checked:
        return replay_checked()
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    found, wanted = {}, {"hit": 0, "absorbed": 0, "fallback_where": 0}
    for key in itertools.product(TOKENS, BLOCK_SIZES, KINDS):
        case = Case(key)
        graph = case.captured()
        bytes_of = case.outputs(graph)
        is_timed = args.times and key[0] in TIMED and key[2] == "normal"
        found[key] = {"bytes": bytes_of, "us": graph_us(case.run, MOVED_BYTES) if is_timed else None}
        chains = 1 + (nodes_for(MOVED_BYTES) if is_timed else 0)
        kernels = 2 if key[0] * TOPK <= FEW else 3
        if key[0] <= MOST_TOKENS:
            wanted["hit"] += chains
            wanted["absorbed"] += chains * (kernels - 1)
        else:
            wanted["fallback_where"] += chains * kernels
        del graph
    torch.save({"found": found, "wanted": wanted}, args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/sglang`")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--checked", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    report, build = Report("sglang_routing"), args.build.resolve()
    command = [sys.executable, __file__, str(build), *([] if args.times else ["--no-times"])]
    shim = {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(build / "config/sglang")}
    alone, _ = run_side(command, {})
    as_one, counts = run_side(command, shim)
    counted = {outcome: sum(n for (_, o), n in counts.items() if o == outcome) for outcome in {o for _, o in counts} | set(as_one["wanted"])}
    report.check("every chain of up to 64 tokens is one launch",
                 [f"{count} nodes are {outcome}, not {as_one['wanted'].get(outcome, 0)}" for outcome, count in sorted(counted.items())
                  if count != as_one["wanted"].get(outcome, 0)] +
                 ([] if counted["hit"] else ["none is: this Triton's code is not in config/sglang/moe_routing_small.table"]))
    table, kept = {}, KeptTimes(build / "config/sglang")
    for kind in KINDS:
        of_kind = [key for key in alone["found"] if key[2] == kind]
        report.check(f"{kind}: what SGLang writes", [problem for key in of_kind for problem in
                                                     compare(key, alone["found"][key]["bytes"], as_one["found"][key]["bytes"])])
    slower = []
    for key, mine in as_one["found"].items():
        us, his_us = mine["us"], alone["found"][key]["us"]
        if us is None:
            continue
        table[name_of(key)] = {"us": us, "alone_us": his_us}
        keep(kept, key, us, his_us)
        print(f"{name_of(key)}: {us:.2f} us, SGLang's {his_us:.2f}", flush=True)
        if us > NOISE * his_us:
            slower.append(f"{name_of(key)}: {us:.2f} us, SGLang's {his_us:.2f}")
    if table:
        report.check("not slower as one", slower)
    check_shadow(report, command, shim)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
