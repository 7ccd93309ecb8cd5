#!/usr/bin/env python3
"""gpt-oss's products of tokens with the weights of their experts in mxfp4 on the GPU, without and with the folder for vLLM.

  tests/gpu/mxfp4_products.py BUILD [--tokens N,N...] [--experts 32|128] [--out FILE] [--keep FILE]

vLLM 0.33 must be importable: its own functions lay out the weights, triton_kernels' choose the experts and launch the products. Each side is a
process of its own and makes the same inputs. The first product with swiglu, and the second with the sum behind it, are captured. Neither may be
further from float64 than the engine's, but for the order of sums, nothing may be written beside the first's output, and neither may be slower, up to
the rows that the folder takes; up to those each is ours, as a profiler sees it. What is kept of the second product is without the sum, whose time is measured by itself.
"""
import argparse
import itertools
import pathlib
import sys

import torch

from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from report import Report
from sides import run_side

TOPK, SIZE, BLOCK_ROWS = 4, 2880, 16
TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 112, 128)
PARTS = {"up": f"moe_gemm_mxfp4_swiglu_n{2 * SIZE}_k{SIZE}_t{TOPK}", "down": f"moe_gemm_mxfp4_weighted_n{SIZE}_k{SIZE}_t1"}
ALPHA, LIMIT = 1.702, 7.0
ROUTES = 12  # that timed calls take turns with: one has its weights in L2
GUARD, POISON = SIZE, 0x5555
MOST_OF_LARGEST, MOST_OF_MEAN = 1.05, 1.005  # of the error: sums in another order


class Weights:
    """Of one product, as the engine lays them out, and as float64 an expert at a time."""

    def __init__(self, experts, rows, seed):
        from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
        from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.values = torch.randint(0, 256, (experts, rows, SIZE // 2), dtype=torch.uint8, generator=generator, device="cuda")
        self.scales = torch.randint(118, 124, (experts, rows, SIZE // 32), dtype=torch.uint8, generator=generator, device="cuda")
        self.bias = torch.randn(experts, rows, generator=generator, device="cuda")
        self.laid_out, flex, scales = _swizzle_mxfp4(self.values, self.scales)
        self.config = PrecisionConfig(weight_scale=scales, flex_ctx=FlexCtx(rhs_data=flex))

    def of(self, expert):
        steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device="cuda")
        codes = torch.stack([self.values[expert] & 15, self.values[expert] >> 4], -1).flatten(-2).long()
        return torch.cat([steps, -steps])[codes] * torch.exp2(self.scales[expert].double() - 127).repeat_interleave(32, -1)


class Case:
    def __init__(self, weights, experts, tokens, kind):
        from triton_kernels.routing import routing
        self.up, self.down = weights
        generator = torch.Generator(device="cuda").manual_seed(10 * tokens + (kind == "alike"))
        random = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.x = random(tokens, SIZE).bfloat16()
        logits = random(ROUTES, tokens, experts) + (4 * random(ROUTES, 1, experts) if kind == "alike" else 0)
        self.routes = [routing(one, TOPK) for one in logits.bfloat16()]
        choices = tokens * TOPK
        self.memory = torch.empty(choices * SIZE + 2 * GUARD, dtype=torch.bfloat16, device="cuda")
        self.activated = self.memory[GUARD:-GUARD].view(1, choices, SIZE)
        self.given = random(choices, SIZE).bfloat16()  # to the second product
        self.output = torch.empty(1, tokens, SIZE, dtype=torch.bfloat16, device="cuda")

    def run(self, part, route):
        from triton_kernels.matmul_ogs import FnSpecs, FusedActivation, matmul_ogs
        from triton_kernels.swiglu import swiglu_fn
        data, gather, scatter = route
        if part == "up":
            activation = FusedActivation(FnSpecs("swiglu", swiglu_fn, ("alpha", "limit")), (ALPHA, LIMIT), 2)
            matmul_ogs(self.x, self.up.laid_out, self.up.bias, data, gather_indx=gather, precision_config=self.up.config, fused_activation=activation,
                       y=self.activated)
        else:
            matmul_ogs(self.given, self.down.laid_out, self.down.bias, data, scatter_indx=scatter, precision_config=self.down.config,
                       gammas=data.gate_scal, y=self.output)

    def sum_alone(self, route):
        from triton_kernels.matmul_ogs import Epilogue, FnSpecs, FusedActivation, reduce_grouped
        made = self.given.view(1, 1, -1, SIZE)
        reduce_grouped(made, route[2].src_indx.view(-1, TOPK), self.output, None, FusedActivation(FnSpecs.default(), tuple(), 1),
                       Epilogue())

    def exact(self, part):
        data, gather, _ = self.routes[0]
        tokens_of = gather.src_indx.long() // TOPK
        counts = data.expt_hist.tolist()
        rows = (self.x[tokens_of] if part == "up" else self.given).double()
        weights = self.up if part == "up" else self.down
        product = torch.cat([of @ weights.of(expert).T + weights.bias[expert].double() for expert, of in enumerate(rows.split(counts)) if len(of)])
        if part == "up":
            gate, up = product[:, ::2].clamp(max=LIMIT), product[:, 1::2].clamp(-LIMIT, LIMIT)
            return gate * torch.sigmoid(ALPHA * gate) * (up + 1)
        return torch.zeros(len(self.x), SIZE, dtype=torch.float64, device="cuda").index_add_(0, tokens_of, product * data.gate_scal.double()[:, None])

    def check(self, part):
        """Mean and largest error, whether something was written beside the output, and whether the kernel was ours."""
        self.run(part, self.routes[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(part, self.routes[0])
        self.memory.view(torch.int16).fill_(POISON)
        self.output.fill_(float("nan"))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
        is_ours = any("moe_gemm_mxfp4" in event.key for event in profiler.key_averages())
        error = ((self.activated if part == "up" else self.output)[0].double() - self.exact(part)).abs()
        is_beside = any((edge.view(torch.int16) != POISON).any().item() for edge in (self.memory[:GUARD], self.memory[-GUARD:]))
        return error.mean().item(), error.max().item(), is_beside, is_ours

    def time(self, run):
        turn = itertools.cycle(self.routes)
        return graph_us(lambda: run(next(turn)), 50e6)


def child(args):
    from vllm.model_executor.layers.fused_moe.experts import gpt_oss_triton_kernels_moe  # makes triton_kernels importable
    torch.zeros(1, device="cuda")
    weights = Weights(args.experts, 2 * SIZE, 1), Weights(args.experts, SIZE, 2)
    found = {}
    for tokens, kind in itertools.product(args.tokens, ("random", "alike")):
        case = Case(weights, args.experts, tokens, kind)
        for part in PARTS:
            one = found[tokens, kind, part] = {"error": case.check(part), "blocks": case.routes[0][0].n_blocks(tokens * TOPK, BLOCK_ROWS)}
            if kind == "random":
                one["us"] = case.time(lambda route: case.run(part, route))
                one["sum_us"] = case.time(case.sum_alone) if part == "down" else 0
    torch.save(found, args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tokens", type=lambda text: [int(tokens) for tokens in text.split(",")], default=TOKENS)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    report, folder = Report("mxfp4_products"), args.build.resolve() / "config/vllm"
    command = [sys.executable, __file__, str(args.build), "--tokens", ",".join(map(str, args.tokens)), "--experts", str(args.experts)]
    alone, _ = run_side(command, {})
    ours, counts = run_side(command, {"LD_PRELOAD": str(args.build.resolve() / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(folder)})
    kept, table = KeptTimes(folder), {}
    for (tokens, kind, part), mine in ours.items():
        his, name = alone[tokens, kind, part], f"{tokens} tokens, {kind}, {part}"
        axes = {"num_choices": tokens * TOPK, "num_blocks": mine["blocks"], "num_experts": args.experts, **({"num_tokens": tokens} if part == "up" else {})}
        is_ours = kept.solution_for(PARTS[part], **axes) is not None
        (mean, largest, is_beside, was_ours), (his_mean, his_largest, *_) = mine["error"], his["error"]
        problems = ["written beside the output"] if is_beside else []
        if was_ours != is_ours:
            problems.append("the kernel was not ours" if is_ours else "the kernel was ours")
        if not mean <= MOST_OF_MEAN * his_mean or not largest <= MOST_OF_LARGEST * his_largest:
            problems.append(f"error {mean:.3e}, at most {largest:.2e}; triton_kernels' {his_mean:.3e}, {his_largest:.2e}")
        if "us" in mine:
            name += f": {mine['us']:.2f} us, triton_kernels' {his['us']:.2f}" + (f", of which the sum {his['sum_us']:.2f}" if part == "down" else "")
            if args.experts == 32:
                kept.add(PARTS[part], "Triton", mine["us"] - mine["sum_us"], his["us"] - his["sum_us"], **axes)
            if is_ours and mine["us"] > NOISE * his["us"]:
                problems.append("slower")
        table[name] = {"mine": mine, "alone": his}
        report.check(name, problems)
    report.check("no errors", [f"{definition}: {count}" for (definition, outcome), count in counts.items() if outcome == "error"])
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
