#!/usr/bin/env python3
"""vLLM's routing of tokens to experts on the GPU: the kernels of a vLLM 0.25 or 0.33 wheel in captured graphs, alone, and as one under the shim.

  tests/gpu/moe_routing.py BUILD KERNELS [--experts N] [--block-size N] [--dtype NAME] [--out FILE] [--keep FILE] [--no-times]

KERNELS is _moe_C_stable_libtorch.abi3.so of the wheel, a cubin or fatbin of it, or a folder of such. The kernels are launched by the
driver, as vLLM's host code launches them. Each side is a process of its own and makes the same inputs. All bytes that the kernels
write, and those beside them, must be the same; the choices of an expert may stand in another order where vLLM has more than 64
experts, since it leaves that open. The weights must not be further from float64. As one they must not be slower.
"""
import argparse
import ctypes
import itertools
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import torch

from counters import read_counts, read_stats
from graph_time import graph_us, nodes_for
from kept_times import NOISE, KeptTimes, finish
from report import Report
from solutions import Kernel, cuda

# Experts, choices of a token, whether the weights are divided by their sum (config/shared/moe_routing).
MODELS = ((8, 2, True), (64, 8, False), (128, 8, True), (256, 8, True))
TOKENS = (1, 2, 4, 8, 16, 32, 64)
MORE_TOKENS = (3, 33, 63)
BLOCK_SIZES = (16, 32, 64)
# As drawn; many alike; with what is no number; with an output that nobody keeps in the memory of a later one; with tokens that are padding.
KINDS = ("normal", "ties", "odd", "reused", "padded")
ALONE = (1, 2, 8, 33, 64, 65, 512)  # tokens that are routed, and not sorted
MOST_TOKENS = 64  # that the folder takes
MOST_AS_ONE = {256: 32}  # by experts: tokens that one kernel routes and sorts, where these are fewer
CHECKED_S = 6
GUARD = 64  # elements before and behind each output
POISON = 0x55555555
FATBIN = struct.pack("<I", 0xBA55ED50)

POINTER, INT32, SIZE, BOOL = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t, ctypes.c_bool
GATING = [POINTER] * 3 + [INT32, POINTER, POINTER] + [INT32] * 3 + [BOOL, POINTER]
ALIGN = [POINTER] * 5 + [INT32] * 4 + [SIZE, POINTER, INT32, INT32, BOOL]
SORT = [POINTER] * 4 + [SIZE] + [INT32] * 3 + [BOOL]
ALIGN_SMALL = [POINTER] * 5 + [INT32] * 2 + [SIZE, INT32, INT32, BOOL]
# Since 0.33: a factor and a mask of the routing, and where the choices stand.
FACTOR_AND_MASK, SCATTER = [ctypes.c_double, POINTER], ([POINTER], [None])


def images_of(path):
    """What the driver may load of a file or of those in a folder: itself, or the fatbins in a library."""
    if path.is_dir():
        for each in sorted(path.iterdir()):
            yield from images_of(each)
        return
    data = path.read_bytes()
    if path.suffix != ".so":
        yield data
        return
    at = data.find(FATBIN)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        yield data[at:at + header + size]
        at = data.find(FATBIN, at + max(header + size, 4))


def padded_of(choices, experts, block_size):
    return choices + min(choices, experts) * (block_size - 1)


def is_small(experts, choices):
    return experts <= 64 and choices < 1024


def keep(kept, key, us, original_us):
    (experts, topk, renormalize), block_size, tokens, dtype, _, _ = key
    padded = padded_of(tokens * topk, experts, block_size)
    name = (f"moe_routing{'_small' if is_small(experts, tokens * topk) else ''}_e{experts}_k{topk}_b{block_size}_n{int(renormalize)}"
            f"{'_fp32' if dtype == 'float32' else ''}")
    kept.add(name, "vLLM", us, original_us, num_tokens=tokens, max_num_tokens_padded=padded, max_num_blocks=-(-padded // block_size))


class WheelKernel(Kernel):
    def __init__(self, function, types):
        self.function, self.types, self.shared_mem = function, types, 48 << 10


class Wheel:
    def __init__(self, path):
        self.modules, self.kernels = [], {}
        for image in images_of(path):
            module = ctypes.c_void_p()
            if cuda.cuModuleLoadData(ctypes.byref(module), image) == 0:  # else nothing in it is for this GPU
                self.modules.append(module)

    def find(self, symbol):
        function = ctypes.c_void_p()
        is_there = any(cuda.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode()) == 0 for module in self.modules)
        return function if is_there else None

    def launch(self, symbol, types, newer, grid, block, values, shared_mem=0):
        """`newer`: how the symbol ends since 0.33, and the types and values of the arguments that it has then beside the others."""
        if symbol not in self.kernels:
            suffix, (more_types, more) = newer
            older = self.find(symbol)
            function = older or self.find(symbol + suffix)
            if not function:
                raise RuntimeError(f"no {symbol}")
            self.kernels[symbol] = WheelKernel(function, types if older else types + more_types)
        kernel = self.kernels[symbol]
        kernel.launch(grid, block, values + newer[1][1][:len(kernel.types) - len(types)], shared_mem)


class Case:
    def __init__(self, wheel, model, block_size, tokens, dtype, kind):
        self.wheel, self.block_size, self.tokens, self.kind = wheel, block_size, tokens, kind
        self.experts, self.topk, self.renormalize = model
        self.choices = tokens * self.topk
        generator = torch.Generator(device="cuda").manual_seed(1000 * tokens + 10 * self.experts + block_size)
        logits = 2 * torch.randn(tokens, self.experts, generator=generator, device="cuda")
        if kind == "ties":
            logits = logits.round()
        if kind == "odd":
            logits[0::4, 5] = float("nan")
            logits[1::4, 3] = float("inf")
            logits[2::4, ::2] = -float("inf")
        self.logits = logits.to(dtype)
        self.mask = (torch.rand(tokens, generator=generator, device="cuda") < 0.4).contiguous() if kind == "padded" else None
        self.padded = padded_of(self.choices, self.experts, block_size)
        self.lengths = {"weights": self.choices, "ids": self.choices, "indices": self.choices, "sorted": self.padded,
                        "expert_ids": -(-self.padded // block_size), "total": 1}
        if not self.is_small():
            self.lengths["cumsum"] = self.experts + 1
        self.memory = {name: torch.empty(length + 2 * GUARD, dtype=torch.int32, device="cuda") for name, length in self.lengths.items()}
        if kind == "reused":
            both = max(self.memory["indices"], self.memory["expert_ids"], key=len)
            self.memory["indices"] = self.memory["expert_ids"] = both

    def is_small(self):
        """vLLM's choice."""
        return is_small(self.experts, self.choices)

    def poison(self):
        for memory in self.memory.values():
            memory.fill_(POISON)

    def at(self, name):
        return self.memory[name].data_ptr() + GUARD * 4

    def choose(self):
        is_bf16 = self.logits.dtype == torch.bfloat16
        held = 8 if is_bf16 else max(4, self.experts // 32)  # logits of a thread
        warps = -(-self.tokens // (32 * held // self.experts))
        symbol = (f"_ZN4vllm3moe10topkGatingILi{held}ELi{self.experts}ELi4ELi16ELi32Ei{'13__nv_bfloat16' if is_bf16 else 'f'}"
                  "LNS0_11ScoringFuncE0EEEvPKT5_PKbPfiPT4_PiiiibPKf")
        self.wheel.launch(
            symbol, GATING, ("dS8_" if is_bf16 else "dS7_", (FACTOR_AND_MASK, [1.0, None if self.mask is None else self.mask.data_ptr()])), (-(-warps // 4), 1, 1), (32, 4, 1),
            [self.logits.data_ptr(), None, self.at("weights"), self.tokens, self.at("ids"), self.at("indices"), self.topk, 0,
             self.experts, self.renormalize, None])

    def run(self):
        self.choose()
        outputs = [self.at(name) for name in ("ids", "sorted", "expert_ids", "total")]
        if self.is_small():
            threads = max(self.experts, 32)
            self.wheel.launch(
                "_ZN4vllm3moe46moe_align_block_size_small_batch_expert_kernelIiLi256EEEvPKT_PiS5_S5_S5_iimiib",
                ALIGN_SMALL, ("S5_", SCATTER), (1, 1, 1), (256 + threads, 1, 1),
                [*outputs, None, self.experts, self.block_size, self.choices, self.padded, self.topk, False],
                4 * ((threads + 1) * self.experts + self.experts + 1))
            return
        experts = -(-self.experts // 32) * 32
        self.wheel.launch(
            "_ZN4vllm3moe27moe_align_block_size_kernelIiEEvPKT_PiS5_S5_S5_iiiimS5_iib", ALIGN, ("", ([], [])), (2, 1, 1), (1024, 1, 1),
            [*outputs, None, self.experts, experts, 32, self.block_size, self.choices, self.at("cumsum"), self.padded, self.topk, False],
            4 * experts)
        self.wheel.launch(
            "_ZN4vllm3moe35count_and_sort_expert_tokens_kernelIiEEvPKT_PiS5_S5_miiib", SORT, ("S5_", SCATTER),
            (1, -(-self.choices // 256), 1), (256, 1, 1),
            [self.at("ids"), self.at("sorted"), self.at("cumsum"), None, self.choices, self.experts, self.padded, self.topk, False])

    def part(self, name):
        return self.memory[name][GUARD:GUARD + self.lengths[name]]

    def outputs(self):
        """All bytes, but for the order within an expert where vLLM leaves that open."""
        copies = {name: memory.cpu() for name, memory in self.memory.items()}
        if self.is_small():
            return copies
        rows = copies["sorted"][GUARD:-GUARD]
        begin = 0
        for _, blocks in itertools.groupby(self.part("expert_ids").tolist()):
            end = begin + self.block_size * sum(1 for _ in blocks)
            rows[begin:end] = rows[begin:end].sort().values
            begin = end
        return copies

    def error(self):
        scores = torch.softmax(self.logits.double(), -1).nan_to_num(0.0)
        ids = self.part("ids").view(self.tokens, self.topk).long()
        exact = scores.gather(1, ids.clamp(0, self.experts - 1))
        if self.renormalize:
            total = exact.sum(-1, keepdim=True)
            exact = exact / torch.where(total > 0, total, 1.0)
        weights = self.part("weights").view(torch.float32).view(self.tokens, self.topk)
        return (weights.double() - exact)[ids[:, 0] >= 0].abs().sum().item()

    def moved_bytes(self):
        return 4 * sum(self.lengths.values())


def keys(args):
    """(model, block size, tokens, dtype, kind, whether it is timed)"""
    for model, block_size, dtype, kind in itertools.product(args.models, args.block_sizes, args.dtypes, KINDS):
        is_timed = args.times and kind == "normal"
        for tokens in sorted(TOKENS + MORE_TOKENS):
            yield model, block_size, tokens, dtype, kind, is_timed and tokens in TOKENS


def replay_checked(wheel):
    """Graphs of every model replayed for a while: the shim checks the launches of them that it has got ready."""
    graphs = []
    for model, dtype, kind, tokens in itertools.product(MODELS, (torch.bfloat16, torch.float32), ("normal", "ties"), (1, 7, 64)):
        case = Case(wheel, model, BLOCK_SIZES[0], tokens, dtype, kind)
        case.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case.run()
        graphs.append((graph, case))
    end = time.monotonic() + CHECKED_S
    while time.monotonic() < end:
        for graph, _ in graphs:
            graph.replay()
        torch.cuda.synchronize()


def child(args):
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    wheel = Wheel(args.kernels)
    if args.checked:
        return replay_checked(wheel)
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    found, chains = {}, {}
    for key in keys(args):
        model, block_size, tokens, dtype, kind, is_timed = key
        case = Case(wheel, model, block_size, tokens, getattr(torch, dtype), kind)
        case.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case.run()
        case.poison()
        graph.replay()
        torch.cuda.synchronize()
        us = graph_us(case.run, case.moved_bytes()) if is_timed else None
        if is_timed:
            case.poison()
            graph.replay()
            torch.cuda.synchronize()
        if tokens <= MOST_AS_ONE.get(model[0], MOST_TOKENS):
            chains[model[0]] = chains.get(model[0], 0) + 1 + (nodes_for(case.moved_bytes()) if is_timed else 0)
        found[key] = {"error": case.error(), "us": us, "bytes": case.outputs()}
        del graph
    routed = {}
    for model, tokens, dtype, kind in itertools.product([model for model in args.models if model[0] > 8], ALONE, args.dtypes, KINDS):
        case = Case(wheel, model, args.block_sizes[0], tokens, getattr(torch, dtype), kind)
        case.poison()
        case.choose()
        torch.cuda.synchronize()
        us = graph_us(case.choose, case.moved_bytes()) if args.times and kind == "normal" else None
        routed[model, tokens, dtype, kind] = {"us": us, "bytes": {name: case.memory[name].cpu() for name in ("weights", "ids", "indices")}}
    torch.save({"found": found, "chains": chains, "routed": routed}, args.child)


def side(args, environment):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "out.pt")
        subprocess.run([sys.executable, __file__, str(args.build), str(args.kernels), "--child", file,
                        *args.chosen, *([] if args.times else ["--no-times"])], check=True,
                       env={**os.environ, **environment, "FIBSHIM_STATS_DIR": folder})
        return torch.load(file), read_counts(folder)


def check_shadow(report, args, environment):
    """No shadow check may report what vLLM leaves open: the order of an expert's choices."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, str(args.build), str(args.kernels), "--child", "-", "--checked"], check=True,
                       env={**os.environ, **environment, "FIBSHIM_STATS_DIR": folder, "FIBSHIM_SHADOW": "1/1"})
        rows = read_stats(folder)["shadow"]
    checks = {row["definition"]: 0 for row in rows if row["definition"].startswith("moe_routing")}
    for row in rows:
        if row["definition"] in checks:
            checks[row["definition"]] += row["checks"]
    print("checks at 1/1:", checks)
    report.check("shadow checks of every number of experts, and no mismatch",
                 [f"none of {experts} experts" for experts, _, _ in MODELS
                  if not any(count for name, count in checks.items() if f"_e{experts}_" in name)] +
                 [f"{row['definition']}, {row['shape']}: {row['mismatches']} of {row['checks']}" for row in rows if row["mismatches"]])


def name_of(key):
    (experts, topk, _), block_size, tokens, dtype, kind, _ = key
    return f"{experts} experts, {topk} choices, blocks of {block_size}, {tokens} tokens, {dtype}, {kind}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("--experts", type=int, help="only this model's number of them")
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--checked", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.models = [model for model in MODELS if args.experts in (None, model[0])]
    args.block_sizes = [args.block_size] if args.block_size else BLOCK_SIZES
    args.dtypes = [args.dtype] if args.dtype else ("bfloat16", "float32")
    args.chosen = [word for name in ("experts", "block_size", "dtype") if getattr(args, name) for word in
                   (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    if args.child:
        return child(args)
    report = Report("moe_routing")
    build = args.build.resolve()
    alone, _ = side(args, {})
    shim = {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(build / "config/vllm")}
    check_shadow(report, args, shim)
    as_one, counts = side(args, shim)
    found = lambda outcome: sum(count for (definition, what), count in counts.items()
                                if what == outcome and definition.startswith("moe_routing"))
    chains = as_one["chains"]
    wanted = {"hit": sum(chains.values()), "absorbed": sum(count * (1 if experts <= 64 else 2) for experts, count in chains.items())}
    report.check("every chain of so few tokens that one kernel is faster is one launch",
                 [f"{found(outcome)} nodes are {outcome}, not {count}" for outcome, count in wanted.items() if found(outcome) != count] +
                 [f"{key}: {count}" for key, count in counts.items() if key[0].startswith("moe_routing") and key[1] not in ("hit", "absorbed") and
                  not (key[1] == "fallback_where" and any(f"_e{experts}_" in key[0] for experts in MOST_AS_ONE))])
    table, kept = {}, KeptTimes(build / "config/vllm")
    for (model, tokens, dtype, kind), mine in as_one["routed"].items():
        (experts, topk, renormalize), his = model, alone["routed"][model, tokens, dtype, kind]
        name = f"{experts} experts, {tokens} tokens, {dtype}, {kind}, not sorted"
        problems = [f"{(mine['bytes'][part] != value).sum().item()} {part} differ" for part, value in his["bytes"].items()
                    if not torch.equal(mine["bytes"][part], value)]
        if mine["us"] is not None:
            name += f": {mine['us']:.2f} us, vLLM's {his['us']:.2f}"
            kept.add(f"moe_topk_e{experts}_k{topk}_n{int(renormalize)}{'_fp32' if dtype == 'float32' else ''}", "vLLM", mine["us"], his["us"],
                     num_tokens=tokens)
            problems += ["slower"] if mine["us"] > NOISE * his["us"] else []
        report.check(name, problems)
    alone_by_us = {f"moe_topk_e{experts}_k{topk}_n{int(renormalize)}{'_fp32' if dtype == 'float32' else ''}"
                   for (experts, topk, renormalize), _, dtype, _ in as_one["routed"]}
    few = sum(tokens <= MOST_TOKENS for tokens in ALONE) * len(KINDS)
    report.check("routing of up to 64 tokens alone is ours", [f"{name}: {counts[name, 'hit']} hits, not {few} or more" for name in sorted(alone_by_us)
                                                             if counts[name, "hit"] < few])
    for experts, dtype in itertools.product((model[0] for model in args.models), args.dtypes):
        own = {key: (alone["found"][key], as_one["found"][key]) for key in as_one["found"] if key[0][0] == experts and key[3] == dtype}
        report.check(f"{experts} experts, {dtype}: the same bytes",
                     [f"{name_of(key)}: {name} has {(mine['bytes'][name] != value).sum().item()} other elements"
                      for key, (his, mine) in own.items() for name, value in his["bytes"].items()
                      if not torch.equal(mine["bytes"][name], value)])
        report.check(f"{experts} experts, {dtype}: weights as near to float64",
                     [f"{name_of(key)}: {mine['error']:.3e}, vLLM's {his['error']:.3e}" for key, (his, mine) in own.items()
                      if not mine["error"] <= his["error"] * 1.0001])
        slower = []
        for key, (his, mine) in own.items():
            if mine["us"] is None:
                continue
            table[name_of(key)] = {"us": mine["us"], "alone_us": his["us"]}
            keep(kept, key, mine["us"], his["us"])
            print(f"{name_of(key)}: {mine['us']:.2f} us, vLLM's {his['us']:.2f}", flush=True)
            if mine["us"] > NOISE * his["us"]:
                slower.append(f"{name_of(key)}: {mine['us']:.2f} us, vLLM's {his['us']:.2f}")
        if any(mine["us"] is not None for _, mine in own.values()):
            report.check(f"{experts} experts, {dtype}: not slower as one", slower)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
