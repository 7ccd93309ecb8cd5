#!/usr/bin/env python3
"""An engine's products of tokens with the weights of their experts (Qwen3-30B-A3B, bfloat16) on the GPU, without and with the folder for it.

  tests/gpu/expert_products.py BUILD vllm|sglang [--out FILE] [--keep FILE] [--no-times]

The engine (vLLM 0.33, SGLang 0.5.23) must be importable: its own functions sort the choices, launch the kernels, and compile those of Triton
by its table for this GPU. Each side is a process of its own and makes the same inputs. Captured are the first product, with silu·mul behind it and alone,
and the second. None may be further from float64 than the engine's, but for the order of sums, and nothing may be written beside the outputs. None may be slower, up to the
rows that the folder takes.
"""
import argparse
import collections
import itertools
import json
import pathlib
import sys

import torch

from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from report import Report
from sides import run_side

EXPERTS, TOPK, HIDDEN, WIDTH = 128, 8, 2048, 768
TOKENS = (1, 2, 3, 4, 5, 8, 16, 24, 32, 33, 40, 48, 56, 64, 65)
CHOICES_OF = ("random", "alike")  # any experts; the same for most tokens
MOST_TOKENS = 64  # that the folders take
FEW_CHOICES = 32  # that vLLM does not sort
PARTS = {"silu": "moe_gemm_silu_e128_n1536_k2048_t8_b16", "up": "moe_gemm_e128_n1536_k2048_t8_b16", "down": "moe_gemm_weighted_e128_n2048_k768_t1_b16"}
ROUTES = 16  # that timed calls take turns with: one has its weights in L2
GUARD = 256  # elements before and behind each output
POISON = 0x5555
# Of the largest error: sums in another order add to it or take from it.
MOST_OF_LARGEST, MOST_OF_MEAN = 1.05, 1.005


class Vllm:
    buckets = EXPERTS  # into which choices are sorted at most

    def __init__(self):
        import vllm._custom_ops  # registers torch.ops._C
        from vllm.model_executor.layers.fused_moe import fused_moe
        self.module = fused_moe

    def config(self, tokens):
        return self.module.try_get_optimal_moe_config((EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH), TOPK, None, tokens)

    def sort(self, ids, config):
        return self.module._prepare_expert_assignment(ids, config, len(ids), TOPK, EXPERTS, None)

    def product(self, a, b, c, weights, route, topk, config, compute_type):
        self.module.invoke_fused_moe_triton_kernel(a, b, c.view(1, *c.shape), None, None, weights, *route, weights is not None, topk, config,
                                                   compute_type, False, False, False, False, False)

    def silu(self, gate_up, output):
        torch.ops._C.silu_and_mul(output, gate_up)

    @staticmethod
    def definition(part, choices):
        name = PARTS[part]
        return name if choices > FEW_CHOICES else name.replace("moe_gemm", "moe_gemm_each").replace("_b16", "")


class Sglang:
    buckets = EXPERTS + 1

    def __init__(self):
        from sglang.kernels.ops.activation.activation import silu_and_mul
        from sglang.kernels.ops.moe import fused_moe_triton_kernels
        from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size
        import sglang
        self.module, self.activate, self.align = fused_moe_triton_kernels, silu_and_mul, moe_align_block_size
        self.unused = torch.ones(1, 1, device="cuda")  # weights of choices, which the first product does not read
        folder = pathlib.Path(sglang.__file__).parent / "srt/layers/moe/moe_runner/triton_utils/configs"
        tables = folder.glob(f"triton_*/E={EXPERTS},N={WIDTH},device_name={torch.cuda.get_device_name().replace(' ', '_')}.json")
        newest = max(tables, key=lambda path: [int(part) for part in path.parent.name.split("_")[1:]])
        self.configs = {int(tokens): config for tokens, config in json.loads(newest.read_text()).items()}

    def config(self, tokens):
        return self.configs[min(self.configs, key=lambda known: abs(known - tokens))]

    def sort(self, ids, config):
        return self.align(ids, config["BLOCK_SIZE_M"], EXPERTS)

    def product(self, a, b, c, weights, route, topk, config, compute_type):
        multiplies = weights is not None
        self.module.invoke_fused_moe_kernel(a, b, None, c.view(1, *c.shape), None, None, None, weights if multiplies else self.unused,
                                            torch.empty(len(c)), *route, multiplies, topk, config, compute_type, False, False, False, False,
                                            False, router_topk=TOPK if multiplies else 1)

    def silu(self, gate_up, output):
        self.activate(gate_up, output)

    @staticmethod
    def definition(part, choices):
        return PARTS[part]


def guarded(rows, columns):
    memory = torch.empty(rows * columns + 2 * GUARD, dtype=torch.bfloat16, device="cuda")
    return memory, memory[GUARD:-GUARD].view(rows, columns)


class Case:
    def __init__(self, engine, weights, tokens, kind):
        import triton.language as tl
        self.engine, (self.w1, self.w2), self.tokens, self.type = engine, weights, tokens, tl.bfloat16
        generator = torch.Generator(device="cuda").manual_seed(10 * tokens + CHOICES_OF.index(kind))
        random = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        choices = tokens * TOPK
        self.x, self.activated = random(tokens, HIDDEN).bfloat16(), random(choices, WIDTH).bfloat16()
        self.topk_weights = torch.softmax(random(tokens, TOPK), dim=-1)
        scores = random(ROUTES, tokens, EXPERTS)
        if kind == "alike":
            scores = scores + 4 * random(ROUTES, 1, EXPERTS)
        self.config = engine.config(tokens)
        self.ids = scores.topk(TOPK, dim=-1).indices.to(torch.int32)
        self.routes = [engine.sort(ids.contiguous(), self.config) for ids in self.ids]
        self.memory, self.outputs = {}, {}
        for name, columns in (("gate_up", 2 * WIDTH), ("output", WIDTH), ("product", 2 * WIDTH), ("down", HIDDEN)):
            self.memory[name], self.outputs[name] = guarded(choices, columns)

    def run(self, part, route):
        run = lambda a, b, c, weights, topk: self.engine.product(a, b, c, weights, route, topk, self.config, self.type)
        if part == "down":
            run(self.activated, self.w2, self.outputs["down"], self.topk_weights.view(-1, TOPK), 1)
        elif part == "up":
            run(self.x, self.w1, self.outputs["product"], None, TOPK)
        else:
            run(self.x, self.w1, self.outputs["gate_up"], None, TOPK)
            self.engine.silu(self.outputs["gate_up"], self.outputs["output"])

    def check(self, part):
        """Errors from float64 by output, and the outputs beside which something was written."""
        self.run(part, self.routes[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(part, self.routes[0])
        for memory in self.memory.values():
            memory.view(torch.int16).fill_(POISON)
        graph.replay()
        torch.cuda.synchronize()
        experts = self.ids[0].flatten().tolist()
        a, b = (self.activated, self.w2) if part == "down" else (self.x, self.w1)
        exact = torch.stack([b[expert].double() @ a[i if part == "down" else i // TOPK].double() for i, expert in enumerate(experts)])
        names = {"down": ["down"], "up": ["product"], "silu": ["gate_up", "output"]}[part]
        errors = {}
        for name in names:
            if part == "down":
                exact = exact * self.topk_weights.double().view(-1, 1)
            if name == "output":
                gate, up = exact.chunk(2, dim=-1)
                exact = torch.nn.functional.silu(gate) * up
            error = (self.outputs[name].double() - exact).abs()
            errors[name] = error.mean().item(), error.max().item()
        is_beside = lambda memory: any((edge.view(torch.int16) != POISON).any() for edge in (memory[:GUARD], memory[-GUARD:]))
        return errors, [name for name, memory in self.memory.items() if is_beside(memory)]

    def time(self, part):
        turn = itertools.cycle(self.routes)
        experts = sum(len(ids.unique()) for ids in self.ids) / ROUTES
        return graph_us(lambda: self.run(part, next(turn)), experts * 2 * HIDDEN * WIDTH * (1 if part == "down" else 2))


def child(args):
    torch.zeros(1, device="cuda")
    engine = Vllm() if args.engine == "vllm" else Sglang()
    generator = torch.Generator(device="cuda").manual_seed(1)
    weights = [torch.empty(EXPERTS, *shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator)
               for shape in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))]
    found, nodes = {}, collections.Counter()
    for tokens, kind, part in itertools.product(TOKENS, CHOICES_OF, PARTS):
        nodes[engine.definition(part, tokens * TOPK)] += tokens <= MOST_TOKENS  # of a graph; timed ones and eager launches come to them
        case = Case(engine, weights, tokens, kind)
        errors, beside = case.check(part)
        found[tokens, kind, part] = {"errors": errors, "beside": beside, "block_size": case.config["BLOCK_SIZE_M"],
                                     "us": case.time(part) if args.times and kind == "random" else None}
    torch.save({"found": found, "nodes": nodes}, args.child)


def keep(kept, definition, buckets, tokens, part, us, original_us):
    choices = tokens * TOPK
    axes = {"num_choices": choices, "num_tokens": choices if part == "down" else tokens}
    if "_each" not in definition:
        padded = choices + min(choices, buckets) * 15
        axes |= {"num_places": padded, "num_blocks": -(-padded // 16)}
    kept.add(definition, "Triton", us, original_us, **axes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/ENGINE`")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    report, build = Report("expert_products"), args.build.resolve()
    command = [sys.executable, __file__, str(build), args.engine, *([] if args.times else ["--no-times"])]
    alone, _ = run_side(command, {})
    folder = build / "config" / args.engine
    ours, counts = run_side(command, {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(folder)})
    hits = collections.Counter()
    for (definition, outcome), count in counts.items():
        hits[definition] += count if outcome == "hit" else 0
    engine, table, kept = {"vllm": Vllm, "sglang": Sglang}[args.engine], {}, KeptTimes(folder)
    wanted = ours["nodes"]
    report.check("every product of up to 64 tokens is ours in graphs", [f"{name}: {hits[name]} hits, not {count} or more" for name, count in
                                                                        sorted(wanted.items()) if hits[name] < count])
    for (tokens, kind, part), mine in ours["found"].items():
        his = alone["found"][tokens, kind, part]
        name = f"{tokens} tokens, {kind}, {part}"
        problems = [f"written beside {of}" for of in mine["beside"]]
        for of, (mean, largest) in mine["errors"].items():
            his_mean, his_largest = his["errors"][of]
            if mean > MOST_OF_MEAN * his_mean or largest > MOST_OF_LARGEST * his_largest or not mean == mean:
                problems.append(f"{of}: error {mean:.3e}, at most {largest:.2e}; {args.engine}'s {his_mean:.3e}, {his_largest:.2e}")
        us, his_us = mine["us"], his["us"]
        if us is not None:
            name += f": {us:.2f} us, {args.engine}'s {his_us:.2f}"
            if tokens <= MOST_TOKENS:
                keep(kept, engine.definition(part, tokens * TOPK), engine.buckets, tokens, part, us, his_us)
            if us > NOISE * his_us:
                problems.append("slower")
        table[name] = {"us": us, "alone_us": his_us, "errors": mine["errors"], "alone_errors": his["errors"]}
        report.check(name, problems)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
