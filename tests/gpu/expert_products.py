#!/usr/bin/env python3
"""An engine's products of tokens with the weights of their experts (Qwen3-30B-A3B) on the GPU, without and with the folder for it.

  tests/gpu/expert_products.py BUILD vllm|sglang [--fp8] [--tokens N,N...] [--out FILE] [--keep FILE] [--no-times]

In bfloat16, or in fp8 with a scale for each block of 128 x 128.
The engine (vLLM 0.33, SGLang 0.5.23) must be importable: its own functions sort the choices, launch the kernels, and compile those of Triton
by its table for this GPU. Each side is a process of its own and makes the same inputs. Captured are the first product, with silu·mul behind it and alone,
and the second, in fp8 with the quantisation in front of it and alone; SGLang's first has one in front of it, too. None may be further from float64
than the engine's, but for the order of sums, what is quantised must be the same bytes, and nothing may be written beside the outputs. None may be
slower, up to the rows that the folder takes.
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
FEW_CHOICES = 32  # that vLLM does not sort
PARTS = {"silu": "moe_gemm_silu_e128_n1536_k2048_t8", "up": "moe_gemm_e128_n1536_k2048_t8", "down": "moe_gemm_weighted_e128_n2048_k768_t1"}
BLOCK = 128  # rows and columns of weights in fp8, and elements of a row, that have a scale
ROUTES = 16  # that timed calls take turns with: one has its weights in L2
GUARD = 256  # elements before and behind each output
POISON = 0x5555
# Of the largest error: sums in another order add to it or take from it.
MOST_OF_LARGEST, MOST_OF_MEAN = 1.05, 1.005


class Vllm:
    buckets = EXPERTS  # into which choices are sorted at most
    fp8_parts = {"silu": "moe_gemm_block_scaled_silu_e128_n1536_k2048_t8", "up": "moe_gemm_block_scaled_e128_n1536_k2048_t8",
                 "down": "quant_then_moe_gemm_block_scaled_ue8m0_weighted_e128_n2048_k768_t1",
                 "down alone": "moe_gemm_block_scaled_weighted_e128_n2048_k768_t1"}
    quantizing = ("down",)  # the parts whose quantisation is one kernel with the product

    def __init__(self, is_fp8):
        import vllm._custom_ops  # registers torch.ops._C
        from vllm.model_executor.layers.fused_moe import fused_moe
        from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8
        self.module, self.is_fp8 = fused_moe, is_fp8
        self.group_quant = per_token_group_quant_fp8

    def config(self, tokens):
        shapes = (EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
        if self.is_fp8:
            return self.module.try_get_optimal_moe_config(*shapes, TOPK, "fp8_w8a8", tokens, block_shape=[BLOCK, BLOCK])
        return self.module.try_get_optimal_moe_config(*shapes, TOPK, None, tokens)

    def sort(self, ids, config):
        return self.module._prepare_expert_assignment(ids, config, len(ids), TOPK, EXPERTS, None)

    def quantize(self, rows):
        return self.group_quant(rows, BLOCK, use_ue8m0=True)

    def product(self, a, b, c, weights, route, topk, config, compute_type):
        (a, a_scale), (b, b_scale) = a, b
        self.module.invoke_fused_moe_triton_kernel(a, b, c.view(1, *c.shape), a_scale, b_scale, weights, *route, weights is not None, topk, config,
                                                   compute_type, self.is_fp8, False, False, False, False,
                                                   block_shape=[BLOCK, BLOCK] if self.is_fp8 else None)

    def silu(self, gate_up, output):
        torch.ops._C.silu_and_mul(output, gate_up)

    @staticmethod
    def definition(name, choices, block):
        if choices > FEW_CHOICES:
            return f"{name}_b{block}"
        head = next(head for head in ("moe_gemm_block_scaled_ue8m0", "moe_gemm_block_scaled", "moe_gemm") if head in name)
        return name.replace(head, head + "_each")


class Sglang:
    buckets = EXPERTS + 1
    fp8_parts = {"silu": "quant_then_moe_gemm_block_scaled_silu_e128_n1536_k2048_t8", "up": "moe_gemm_block_scaled_e128_n1536_k2048_t8",
                 "down": "quant_then_moe_gemm_block_scaled_weighted_e128_n2048_k768_t1",
                 "down alone": "moe_gemm_block_scaled_weighted_e128_n2048_k768_t1"}
    quantizing = ("silu", "down")

    def __init__(self, is_fp8):
        from sglang.kernels.ops.activation.activation import silu_and_mul
        from sglang.kernels.ops.moe import fused_moe_triton_kernels
        from sglang.kernels.ops.quantization.fp8_kernel import sglang_per_token_group_quant_fp8
        from sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size import moe_align_block_size
        import sglang
        self.module, self.activate, self.align, self.is_fp8 = fused_moe_triton_kernels, silu_and_mul, moe_align_block_size, is_fp8
        self.group_quant = sglang_per_token_group_quant_fp8
        self.unused = torch.ones(1, 1, device="cuda")  # weights of choices, which the first product does not read
        folder = pathlib.Path(sglang.__file__).parent / "srt/layers/moe/moe_runner/triton_utils/configs"
        kind = f",dtype=fp8_w8a8,block_shape=[[]{BLOCK}, {BLOCK}]" if is_fp8 else ""
        tables = folder.glob(f"triton_*/E={EXPERTS},N={WIDTH},device_name={torch.cuda.get_device_name().replace(' ', '_')}{kind}.json")
        newest = max(tables, key=lambda path: [int(part) for part in path.parent.name.split("_")[1:]])
        self.configs = {int(tokens): config for tokens, config in json.loads(newest.read_text()).items()}

    def config(self, tokens):
        return self.configs[min(self.configs, key=lambda known: abs(known - tokens))]

    def sort(self, ids, config):
        return self.align(ids, config["BLOCK_SIZE_M"], EXPERTS)

    def quantize(self, rows):
        return self.group_quant(rows, BLOCK)

    def product(self, a, b, c, weights, route, topk, config, compute_type):
        multiplies = weights is not None
        (a, a_scale), (b, b_scale) = a, b
        self.module.invoke_fused_moe_kernel(a, b, None, c.view(1, *c.shape), a_scale, b_scale, None, weights if multiplies else self.unused,
                                            torch.empty(len(c)), *route, multiplies, topk, config, compute_type, self.is_fp8, False, False, False,
                                            False, block_shape=[BLOCK, BLOCK] if self.is_fp8 else None, router_topk=TOPK if multiplies else 1)

    def silu(self, gate_up, output):
        self.activate(gate_up, output)

    @staticmethod
    def definition(name, choices, block):
        return f"{name}_b{block}"


def guarded(rows, columns):
    memory = torch.empty(rows * columns + 2 * GUARD, dtype=torch.bfloat16, device="cuda")
    return memory, memory[GUARD:-GUARD].view(rows, columns)


def widen(rows, scales):
    return rows.double() * scales.double().repeat_interleave(BLOCK, dim=-1)


class Case:
    def __init__(self, engine, weights, tokens, kind):
        import triton.language as tl
        self.engine, (self.w1, self.w2), self.tokens, self.type = engine, weights, tokens, tl.bfloat16
        generator = torch.Generator(device="cuda").manual_seed(10 * tokens + CHOICES_OF.index(kind))
        random = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        choices = tokens * TOPK
        self.x, self.activated = random(tokens, HIDDEN).bfloat16(), random(choices, WIDTH).bfloat16()
        self.quantized = {}
        if engine.is_fp8:  # a block of zeros, and one of large numbers
            self.x[0, :BLOCK] = 0
            self.activated[-1, -BLOCK:] *= 1000
            self.quantized = {"up": engine.quantize(self.x), "down": engine.quantize(self.activated)}
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

    def rows_of(self, part):
        """A with its scales, quantised here if the part has that."""
        of, plain = ("down", self.activated) if part.startswith("down") else ("up", self.x)
        if not self.engine.is_fp8:
            return plain, None
        return self.engine.quantize(plain) if part in self.engine.quantizing else self.quantized[of]

    def run(self, part, route):
        a = self.rows_of(part)
        run = lambda b, c, weights, topk: self.engine.product(a, b, c, weights, route, topk, self.config, self.type)
        if part.startswith("down"):
            run(self.w2, self.outputs["down"], self.topk_weights.view(-1, TOPK), 1)
        elif part == "up":
            run(self.w1, self.outputs["product"], None, TOPK)
        else:
            run(self.w1, self.outputs["gate_up"], None, TOPK)
            self.engine.silu(self.outputs["gate_up"], self.outputs["output"])
        return a

    def check(self, part):
        """Errors from float64 by output, the outputs beside which something was written, and what the rows became where they are quantised: as they
        are, and with numbers that are none."""
        self.run(part, self.routes[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = self.run(part, self.routes[0])
        for memory in self.memory.values():
            memory.view(torch.int16).fill_(POISON)
        quantizes = self.engine.is_fp8 and part in self.engine.quantizing
        if quantizes:
            rows[0].view(torch.uint8).fill_(0x55), rows[1].fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        is_down = part.startswith("down")
        expected = self.quantized.get("down" if is_down else "up")
        bytes_of = lambda: [part.view(torch.uint8).cpu() for part in rows] if quantizes else []
        made = bytes_of()
        a = widen(*expected) if expected else (self.activated if is_down else self.x).double()
        experts = self.ids[0].flatten().tolist()
        b, scales = self.w2 if is_down else self.w1
        weights = lambda expert: widen(b[expert], scales[expert].repeat_interleave(BLOCK, dim=0)) if expected else b[expert].double()
        exact = torch.stack([weights(expert) @ a[i if is_down else i // TOPK] for i, expert in enumerate(experts)])
        names = ["down"] if is_down else ["product"] if part == "up" else ["gate_up", "output"]
        errors = {}
        for name in names:
            if is_down:
                exact = exact * self.topk_weights.double().view(-1, 1)
            if name == "output":  # of what was rounded and stored, which is compared by itself
                gate, up = self.outputs["gate_up"].double().chunk(2, dim=-1)
                exact = torch.nn.functional.silu(gate) * up
            error = (self.outputs[name].double() - exact).abs()
            errors[name] = error.mean().item(), error.max().item()
        is_beside = lambda memory: any((edge.view(torch.int16) != POISON).any() for edge in (memory[:GUARD], memory[-GUARD:]))
        beside = [name for name, memory in self.memory.items() if is_beside(memory)]
        if quantizes:
            (self.activated if is_down else self.x)[0, 1:4] = torch.tensor([float("nan"), float("inf"), -float("inf")])
            graph.replay()
            torch.cuda.synchronize()
        return errors, beside, made + bytes_of()

    def time(self, part):
        turn = itertools.cycle(self.routes)
        experts = sum(len(ids.unique()) for ids in self.ids) / ROUTES
        size = 1 if self.engine.is_fp8 else 2
        return graph_us(lambda: self.run(part, next(turn)), experts * size * HIDDEN * WIDTH * (1 if part.startswith("down") else 2))


def make_weights(is_fp8):
    generator = torch.Generator(device="cuda").manual_seed(1)
    for shape in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH)):
        if not is_fp8:
            yield torch.empty(EXPERTS, *shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator), None
            continue
        plain = torch.empty(EXPERTS, *shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)
        scales = torch.empty(EXPERTS, *(size // BLOCK for size in shape), device="cuda").uniform_(0.005, 0.04, generator=generator)
        yield plain.to(torch.float8_e4m3fn), scales


def parts_of(engine, is_fp8):
    return engine.fp8_parts if is_fp8 else PARTS


def child(args):
    torch.zeros(1, device="cuda")
    engine = {"vllm": Vllm, "sglang": Sglang}[args.engine](args.fp8)
    parts, weights = parts_of(engine, args.fp8), list(make_weights(args.fp8))
    found = {}
    for tokens, kind, part in itertools.product(args.tokens, CHOICES_OF, parts):
        case = Case(engine, weights, tokens, kind)
        errors, beside, quantized = case.check(part)
        found[tokens, kind, part] = {"errors": errors, "beside": beside, "quantized": quantized, "block_size": case.config["BLOCK_SIZE_M"],
                                     "us": case.time(part) if args.times and kind == "random" else None}
    torch.save(found, args.child)


def call_of(kept, engine, name, block, tokens):
    """The definition and its variable axes, or None where the folder has no solution for them."""
    choices, is_down = tokens * TOPK, "_weighted" in name
    definition = engine.definition(name, choices, block)
    axes = {"num_choices": choices, "num_tokens": choices if is_down else tokens}
    if "_each" not in definition:
        padded = choices + min(choices, engine.buckets) * (block - 1)
        axes |= {"num_places": padded, "num_blocks": -(-padded // block)}
    if "block_scaled" in definition:
        n, k = (HIDDEN, WIDTH) if is_down else (2 * WIDTH, HIDDEN)
        axes |= {"N_blocks": n // BLOCK, "K_blocks": k // BLOCK}
    return (definition, axes) if definition in kept.axes and kept.solution_for(definition, **axes) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("--fp8", action="store_true", help="weights in fp8 with a scale for each block of 128 x 128")
    parser.add_argument("--tokens", type=lambda text: [int(tokens) for tokens in text.split(",")], default=TOKENS)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/ENGINE`")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    report, build = Report("expert_products"), args.build.resolve()
    command = [sys.executable, __file__, str(build), args.engine, *(["--fp8"] if args.fp8 else []),
               "--tokens", ",".join(map(str, args.tokens)), *([] if args.times else ["--no-times"])]
    alone, _ = run_side(command, {})
    folder = build / "config" / args.engine
    ours, counts = run_side(command, {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(folder)})
    hits = collections.Counter()
    for (definition, outcome), count in counts.items():
        hits[definition] += count if outcome == "hit" else 0
    engine, table, kept = {"vllm": Vllm, "sglang": Sglang}[args.engine], {}, KeptTimes(folder)
    wanted, parts = collections.Counter(), parts_of(engine, args.fp8)
    calls = {key: call_of(kept, engine, parts[key[2]], one["block_size"], key[0]) for key, one in ours.items()}
    for definition, _ in filter(None, calls.values()):
        wanted[definition] += 1  # node of a graph; timed ones and eager launches come to them
    report.check("every product that the folder takes is ours in graphs", [f"{name}: {hits[name]} hits, not {count} or more" for name, count in
                                                                        sorted(wanted.items()) if hits[name] < count])
    for (tokens, kind, part), mine in ours.items():
        his = alone[tokens, kind, part]
        name = f"{tokens} tokens, {kind}, {part}"
        problems = [f"written beside {of}" for of in mine["beside"]]
        if not all(map(torch.equal, mine["quantized"], his["quantized"])):
            problems.append("rows are quantised otherwise")
        for of, (mean, largest) in mine["errors"].items():
            his_mean, his_largest = his["errors"][of]
            if mean > MOST_OF_MEAN * his_mean or largest > MOST_OF_LARGEST * his_largest or not mean == mean:
                problems.append(f"{of}: error {mean:.3e}, at most {largest:.2e}; {args.engine}'s {his_mean:.3e}, {his_largest:.2e}")
        us, his_us = mine["us"], his["us"]
        if us is not None:
            name += f": {us:.2f} us, {args.engine}'s {his_us:.2f}"
            if call := calls[tokens, kind, part]:
                kept.add(call[0], "Triton", us, his_us, **call[1])
            if us > NOISE * his_us:
                problems.append("slower")
        table[name] = {"us": us, "alone_us": his_us, "errors": mine["errors"], "alone_errors": his["errors"]}
        report.check(name, problems)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
