#!/usr/bin/env python3
"""SGLang's norms of query's and key's heads, their rotation, and the keys and values into its cache, on the GPU: its three kernels in
captured graphs, alone, and as one under the shim; and the last two, of models without norms of the heads.

  tests/gpu/sglang_rewrites.py BUILD KERNELS [--out FILE] [--keep FILE]

KERNELS is what `tests/engines/engines.py sglang KERNELS` compiles of SGLang's sources, as it does itself at run time. The kernels are
launched by the driver, as SGLang's host code launches them: with grids for the whole GPU at most, and each may begin before the one
before it has ended. Each side is a process of its own and makes the same inputs. Every byte that the kernels write, and all others of
the rows and caches, must be SGLang's; as one they must be faster.
"""
import argparse
import ctypes
import pathlib
import sys

import torch

from graph_time import graph_us
from kept_times import KeptTimes, finish
from report import Report
from sides import compare_sides, run_side
from solutions import Kernel

# Heads of query, and of key and value, and their size (config/shared/qk_rope_append/store_sizes.table).
SIZES = tuple((*heads, 128) for heads in ((16, 8), (32, 4), (32, 8), (40, 8), (64, 4), (64, 8), (16, 4), (32, 2), (20, 4), (16, 2), (16, 1), (10, 2),
                                         (8, 2), (8, 1)))
# rope_store_sizes.table there.
SIZES_WITHOUT_NORMS = ((24, 8, 128), (32, 8, 128), (40, 8, 128), (64, 8, 128), (16, 4, 128), (32, 4, 128), (32, 8, 64), (16, 4, 64), (14, 2, 64),
                       (28, 4, 128), (16, 2, 128), (12, 2, 128), (20, 4, 128), (14, 2, 128), (8, 2, 128), (8, 1, 128), (4, 1, 128))
TOKENS = (1, 8, 32, 256, 512)
MOST_TOKENS = {(64, 8, 128): 256, (14, 2, 128): 32}  # without norms; the others have all of TOKENS
SLOTS, POSITIONS, EPS = 8192, 40960, 1e-6
RESERVED_SLOT = 0
BLOCKS_PER_SM = {"norm": 12, "rotate": 16}  # of 128 threads, by their registers
POINTER, INT64, UINT32 = ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint32
SYMBOLS = {"norm": "_ZN6sglang22fused_qknorm_half_warpILb1E13__nv_bfloat16EEvNS_12QKNormParamsE",
           "older norm": "_ZN6sglang17fused_qknorm_warpILl128ELb1E13__nv_bfloat16EEvNS_12QKNormParamsE",
           "rotate 128": "_ZN6sglang17fused_rope_kernelILb1ELl128ELb1E13__nv_bfloat16S1_lLj16EEEvNS_15FusedRopeParamsE",
           "rotate 64": "_ZN6sglang17fused_rope_kernelILb1ELl64ELb1E13__nv_bfloat16S1_lLj8EEEvNS_15FusedRopeParamsE"}


def structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


QkNormParams = structure("QkNormParams", ("q", POINTER), ("k", POINTER), ("q_stride", INT64), ("k_stride", INT64), ("q_heads", UINT32),
                         ("kv_heads", UINT32), ("eps", ctypes.c_float), ("q_weight", POINTER), ("k_weight", POINTER), ("tokens", UINT32))
FusedRopeParams = structure("FusedRopeParams", ("q", POINTER), ("k", POINTER), ("angles", POINTER), ("positions", POINTER),
                            ("q_stride", INT64), ("k_stride", INT64), ("head_stride", INT64), ("q_heads", UINT32), ("kv_heads", UINT32),
                            ("tokens", UINT32))
StoreParams = structure("StoreParams", ("k", POINTER), ("v", POINTER), ("k_cache", POINTER), ("v_cache", POINTER), ("slots", POINTER),
                        ("k_stride", INT64), ("v_stride", INT64), ("k_slot_stride", INT64), ("v_slot_stride", INT64),
                        ("slots_stride", INT64), ("tokens", UINT32), ("slot_count", INT64), ("reserved_slot", INT64))


def divided(count, by):
    return -(-count // by)


def threads_of_a_row(row_bytes):
    threads, part = 32, row_bytes // 32
    while part % 8 == 0 and 2 * part >= 64:
        threads, part = 2 * threads, part // 2
    return threads


def definition_of(heads, kv_heads, head_size, norm):
    return f"{'qk_rmsnorm_' if norm else ''}rope_store_r{(heads + 2 * kv_heads) * head_size}_q{heads}_kv{kv_heads}_d{head_size}"


class Layer:
    memory = {}  # the caches, each an allocation of its own, as an engine's are

    def __init__(self, kernels, size, tokens, norm="norm"):
        self.q_heads, self.kv_heads, self.head = size
        self.tokens, self.norm_name = tokens, norm
        generator = torch.Generator(device="cuda").manual_seed(self.q_heads + self.kv_heads + tokens)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        if not self.memory:
            torch.cuda.empty_cache()
            for heads, head in {size[1:] for size in SIZES + SIZES_WITHOUT_NORMS}:
                self.memory[heads, head] = [torch.zeros(SLOTS, heads, head, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
                angle = torch.outer(torch.arange(POSITIONS).float(), 1e6 ** -(torch.arange(head // 2) / (head // 2)))
                self.memory[head] = torch.cat([angle.cos(), angle.sin()], -1).cuda()
        self.angles, self.caches = self.memory[self.head], self.memory[self.kv_heads, self.head]
        self.rows = normal(tokens, (self.q_heads + 2 * self.kv_heads) * self.head).to(torch.bfloat16)
        self.qkv = self.rows.clone()
        self.weights = [(1 + 0.2 * normal(self.head)).to(torch.bfloat16) for _ in range(2)]
        choose = lambda most: torch.randperm(most - 1, generator=generator, device="cuda")[:tokens] + 1
        self.positions, self.slots = choose(POSITIONS), choose(SLOTS)
        self.slots[tokens // 2 + 1:] = RESERVED_SLOT if tokens < 32 else self.slots[tokens // 2 + 1:]
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        row_bytes = 2 * self.head * self.kv_heads
        threads = threads_of_a_row(row_bytes)
        store = (f"_ZN6sglang20store_kvcache_kernelILl{row_bytes}ELl{row_bytes}ELj{threads}ELb1ElEEvNS_18StoreKVCacheParamsE")
        symbols = {**({"norm": SYMBOLS[norm]} if norm else {}), "rotate": SYMBOLS[f"rotate {self.head}"], "store": store}
        self.kernels = {name: Kernel(kernels, symbol, [lambda value: value]) for name, symbol in symbols.items()}
        self.fill_in()

    def fill_in(self):
        q, heads, kv_heads, tokens = self.qkv.data_ptr(), self.q_heads, self.kv_heads, self.tokens
        head_bytes = 2 * self.head
        row, slot = head_bytes * (heads + 2 * kv_heads), head_bytes * kv_heads
        q_stride, kv_stride = (row, row) if tokens > 1 else (head_bytes * heads, slot)
        weights = [weight.data_ptr() for weight in self.weights]
        # The base of the key is that of the query, since SGLang numbers their heads together.
        self.params = {
            "norm": QkNormParams(q, q, q_stride // 2, kv_stride // 2, heads, kv_heads, EPS, *weights, tokens),
            "rotate": FusedRopeParams(q, q, self.angles.data_ptr(), self.positions.data_ptr(), q_stride, kv_stride, head_bytes, heads, kv_heads,
                                      tokens),
            "store": StoreParams(q + head_bytes * heads, q + head_bytes * (heads + kv_heads), *(cache.data_ptr() for cache in self.caches),
                                 self.slots.data_ptr(), kv_stride, kv_stride, slot, slot, 1, tokens, SLOTS,
                                 RESERVED_SLOT)}
        rows, splits = tokens * (heads + kv_heads), threads_of_a_row(slot) // 32
        warps = next((n for n in (1, 2, 4) if tokens * splits <= n * self.sms), 8)
        norm_rows = rows if self.norm_name == "older norm" else divided(rows, 2)
        self.grids = {"norm": (min(divided(norm_rows, 4), BLOCKS_PER_SM["norm"] * self.sms), (128, 1, 1)),
                      "rotate": (min(divided(rows, 1024 // self.head), BLOCKS_PER_SM["rotate"] * self.sms), (128, 1, 1)),
                      "store": (divided(tokens * splits, warps), (32, warps, 1))}

    def reset(self):
        self.qkv.copy_(self.rows)
        for cache in self.caches:
            cache.zero_()

    def run(self):
        for name, kernel in self.kernels.items():
            grid, block = self.grids[name]
            kernel.launch((grid, 1, 1), block, [self.params[name]], is_dependent=True)

    def outputs(self):
        return {"rows": self.qkv, "keys": self.caches[0], "values": self.caches[1]}

    def error(self):
        """Of the query's heads, from float64, rounded where SGLang rounds."""
        x = self.rows.view(self.tokens, -1, self.head)[:, :self.q_heads].double()
        if self.norm_name:
            x = (x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self.weights[0].double()).bfloat16().double()
        cos, sin = self.angles[self.positions].double().unsqueeze(1).chunk(2, -1)
        a, b = x.chunk(2, -1)
        exact = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return (self.qkv.view(self.tokens, -1, self.head)[:, :self.q_heads].double() - exact).abs().mean().item()


def child(args):
    out = {}
    torch.cuda.init()
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    del warm
    cases = [(size, tokens, "norm") for size in SIZES for tokens in TOKENS] + [((32, 8, 128), 8, "older norm")]
    cases += [(size, tokens, None) for size in SIZES_WITHOUT_NORMS for tokens in TOKENS if tokens <= MOST_TOKENS.get(size, tokens)]
    for size, tokens, norm in cases:
        layer = Layer(args.kernels, size, tokens, norm)
        layer.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer.run()
        layer.reset()
        graph.replay()
        torch.cuda.synchronize()
        bytes_of = {name: tensor.contiguous().view(torch.uint8).cpu() for name, tensor in layer.outputs().items()}
        out[f"{size} {tokens} {norm or 'without norms'}"] = {"bytes": bytes_of, "error": layer.error(), "size": size, "tokens": tokens, "norm": norm,
                                          "us": graph_us(layer.run, 4 * layer.qkv.numel())}
        del graph
    torch.save(out, args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/sglang`")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    build = args.build.resolve()
    report = Report("sglang_rewrites")
    with report.phase("both sides"):
        command = [sys.executable, __file__, args.build, args.kernels]
        alone, _ = run_side(command, {})
        as_one, counted = run_side(command, {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(build / "config/sglang")})
    table, kept = {}, KeptTimes(build / "config/sglang")
    with report.phase("all are rewritten") as problems:
        outcomes = lambda name: {of: count for (of, outcome), count in counted.items() if outcome == name}
        absorbed = sum((2 if of.startswith("qk_rmsnorm") else 1) * count for of, count in outcomes("hit").items())
        wanted = {definition_of(*case["size"], case["norm"]) for case in as_one.values()}
        if outcomes("hit").keys() != wanted or sum(outcomes("absorbed").values()) != absorbed or outcomes("fallback_graph"):
            problems.append(f"counted {counted}")
    for key, mine in as_one.items():
        his = alone[key]
        if "older" not in key:
            kept.add(definition_of(*mine["size"], mine["norm"]), "SGLang", mine["us"], his["us"], num_tokens=mine["tokens"], max_seq_len=POSITIONS,
                     num_slots=SLOTS)
        table[key] = compare_sides(report, key, mine, his)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
