#!/usr/bin/env python3
"""Decode attention that SGLang leaves to FlashAttention 3, without and with the folder for it (config/flash_attention).

  tests/gpu/sglang_attention.py BUILD CUBINS [--keep FILE]

CUBINS is build/sglang_attention, which `tests/engines/engines.py attention` has filled: the kernels of sglang-kernel's wheel.
They are launched by the driver as its library launches them: the kernel that counts parts and sorts sequences, attention, and what
merges parts. The structs are filled as its source says, so that FlashAttention's own results also show whether that is right. Each
side is a process of its own and makes the same inputs. Compared are the errors of output and lse from float64, of calls and of a
graph that is replayed with other lengths, and the times of replayed graphs that read more keys and values than L2 holds. A third
side has only what merges parts, whose bits must be FlashAttention's. What the folder is not for must run as before, and be counted.
"""
import ctypes
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from counters import FIBSHIM, read_arguments, run_side
from kept_times import KeptTimes

CACHES = 400 << 20  # bytes of keys and values that a timed graph reads at least
POISON = float("nan")
SPLITS = 32  # of a sequence at most
TYPES = {"": "bfloat16", "_fp16": "float16"}  # by a definition's suffix
OF_TYPES = {"10bfloat16_t": "", "6half_t": "_fp16"}  # by a kernel's
TILE_TOKENS = {128: 128, 64: 192}  # of FlashAttention, by head size
ROWS = {128: 8, 64: 16}  # of a block that merges parts
SHARED_MEM, SHARED_MEM_OF_MERGES = 200 << 10, 25 << 10  # enough for each; of the former there is a block to an SM


def divisor(value):
    """CUTLASS's FastDivmod."""
    if value == 1:
        return 1, 0, 0
    power = 31 + (value - 1).bit_length()
    return value, ((1 << power) + value - 1) // value, power - 32


class Parameter:
    """A struct, and values at offsets in it."""

    def __init__(self, size):
        self.bytes = bytearray(size)

    def put(self, kind, fields):
        for offset, values in fields.items():
            values = values if isinstance(values, (tuple, list)) else (values,)
            struct.pack_into(f"<{len(values)}{kind}", self.bytes, offset, *values)


class Kernels:
    def __init__(self, folder):
        from solutions import Kernel
        self.attention, self.merges, self.prepares = {}, {}, {}
        for path in sorted(pathlib.Path(folder).glob("*.cubin")):
            out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, stdout=subprocess.PIPE,
                                 env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
            for kernel in json.loads(out)["files"][0]["kernels"]:
                name, sizes = kernel["name"], [param["size"] for param in kernel["params"]]
                whole = lambda size: (lambda data: (ctypes.c_ubyte * size).from_buffer_copy(data))
                make = lambda: Kernel(str(path), name, [whole(size) for size in sizes])
                if found := re.search(r"prepare_varlen_num_blocks_kernelILi(\d+)ELb1E", name):
                    self.prepares[int(found[1])] = make()
                elif found := re.search(r"Combine.*CILi\d+EEENS5_ILi(\d+)EEEEEELi(\d)ELi256ELi1ELb0ELb1ENS_(\w+_t)EfNS_4arch4Sm90", name):
                    self.merges[OF_TYPES[found[3]], int(found[1]), int(found[2])] = make()
                elif found := re.search(r"ELi(64|128)ENS_(\w+_t)EfNS_4arch4Sm90ELb([01])ELb0ELb0ELb1ELb1ELb0ELb0ELb0ELb1ELb1ELb1ELb([01])ELb0E"
                                        r".*SchedulerILi64E", name):
                    self.attention[OF_TYPES[found[2]], int(found[1]), found[3] == "1", found[4] == "1"] = make()


class Batch:
    """Inputs as SGLang has them. `longest`: tokens for which the page table has room."""

    def __init__(self, kernels, lengths, heads, kv_heads, head_dim, page_size, splits, is_causal=True, longest=None, layers=1, is_poisoned=True,
                 suffix=""):
        import torch
        self.suffix, dtype = suffix, getattr(torch, TYPES[suffix])
        self.kernels, self.page_size, self.splits, self.is_causal, self.is_poisoned = kernels, page_size, splits, is_causal, is_poisoned
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.width = -(-(longest or max(lengths + [1])) // page_size)
        self.generator = torch.Generator(device="cuda").manual_seed(len(lengths) * 31 + heads + page_size)
        count = len(lengths)
        pages = (count * self.width if longest and layers == 1 else sum(-(-length // page_size) for length in lengths)) + 3
        self.caches = [torch.empty(2, pages, page_size, kv_heads, head_dim, device="cuda", dtype=dtype) for _ in range(layers)]
        ints = lambda *shape: torch.zeros(*shape, device="cuda", dtype=torch.int32)
        self.table, self.on_device = ints(count, self.width), ints(count)
        self.first_rows = torch.arange(count + 1, device="cuda", dtype=torch.int32)
        rounded = -(-count // 4) * 4
        self.metadata = ints(4 * rounded + 1)  # counts, blocks, order, heads in L2; the semaphore
        self.splits_at, self.blocks_at, self.order_at, self.in_l2_at, self.semaphore_at = (
            self.metadata.data_ptr() + 4 * rounded * i for i in range(5))
        self.q = torch.empty(count, heads, head_dim, device="cuda", dtype=dtype)
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(heads, count, device="cuda")
        self.parts = torch.full((splits, heads, count, head_dim), POISON, device="cuda") if splits > 1 else None
        self.lse_of_parts = torch.full((splits, heads, count), POISON, device="cuda") if splits > 1 else None
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.fill(lengths)

    def fill(self, lengths):
        """New lengths, and all values, where the old ones were."""
        import torch
        self.lengths = lengths
        pages = self.caches[0].shape[1]
        order = torch.randperm(pages, generator=self.generator, device="cuda").int()
        self.table.fill_(1 << 30 if self.is_poisoned else 0)  # no page
        at = 0
        for row, length in enumerate(lengths):
            count = -(-length // self.page_size)
            self.table[row, :count] = order[at:at + count]
            at += count
        for cache in self.caches:
            cache.normal_(generator=self.generator)
            if self.is_poisoned:  # what belongs to no token may hold anything
                cache[:, order[at:].long()] = POISON
                for row, length in enumerate(lengths):
                    if length % self.page_size:
                        cache[:, self.table[row, length // self.page_size].long(), length % self.page_size:] = POISON
        self.q.normal_(generator=self.generator)
        self.out.fill_(POISON)
        self.lse.fill_(POISON)
        self.on_device.copy_(torch.tensor(lengths))

    def prepare(self):
        """Counts parts, and sorts."""
        count, tokens = len(self.lengths), TILE_TOKENS[self.head_dim]
        warps = next(warps for warps in (1, 2, 4, 8, 16, 32) if 31 * warps >= count)
        int_of, at_of = lambda value: struct.pack("<i", value), lambda value: struct.pack("<Q", value)
        self.kernels.prepares[warps].launch((1, 1, 1), (32 * warps, 1, 1), [
            *map(int_of, (1, self.width * self.page_size, 0)),
            *map(at_of, (self.first_rows.data_ptr(), 0, 0, 0, self.on_device.data_ptr(), 0)),
            *map(int_of, (count, self.kv_heads, self.heads // self.kv_heads, self.sms, self.splits)),
            struct.pack("<iII", *divisor(64)), struct.pack("<iII", *divisor(tokens)),
            *map(at_of, (self.semaphore_at, self.blocks_at, self.splits_at, self.order_at, self.in_l2_at if self.is_causal else 0)),
            b"\0", bytes([self.is_causal]), b"\1", int_of((8 << 20) // (tokens * 2 * self.head_dim * 2))])

    def attend(self, layer=0, **changed):
        k, v = self.caches[layer]
        rows, group, is_split = len(self.lengths), self.heads // self.kv_heads, self.splits > 1
        at = lambda tensor: 0 if tensor is None else tensor.data_ptr()
        head, row = self.head_dim, self.heads * self.head_dim
        part_head, part = (rows * head, self.heads * rows * head) if is_split else (0, 0)
        part_row = head if is_split else 0
        of = Parameter(2688)
        of.put("q", {
            0: at(self.q), 24: (row, head), 72: (head, row, group * head), 104: at(k), 128: (k.stride(1), k.stride(2), k.stride(0)),
            152: at(v), 168: (v.stride(1), v.stride(2), v.stride(0)), 408: at(self.table), 424: self.width, 1928: at(self.first_rows),
            1960: at(self.on_device), 1984: changed.get("sinks", 0), 2048: at(self.out), 2080: (row, head), 2136: (head, row, group * head),
            2176: at(self.parts), 2184: (part_row, part_head, 0, part), 2216: (part_head, part_row, group * part_head, 0, part), 2256: at(self.lse),
            2264: rows, 2312: (rows, group * rows), 2344: at(self.lse_of_parts), 2352: (rows, 0, self.heads * rows),
            2376: (rows, group * rows, 0, self.heads * rows), 2432: at(self.first_rows), 2528: (self.semaphore_at, at(self.first_rows), 0),
            2552: (self.splits_at, self.blocks_at, self.order_at, self.in_l2_at if self.is_causal else 0)})
        of.put("i", {
            8: (rows, head, self.heads, 1), 48: (group, rows, head, self.kv_heads, 1), 112: (self.page_size, head, self.kv_heads, k.shape[0]),
            160: head, 368: self.width * self.page_size, 416: (rows, self.width), 1892: (self.width * self.page_size - 1, 0), 1912: self.splits,
            2056: (rows, head, self.heads, 1, self.splits), 2112: (group, rows, head, self.kv_heads, 1, self.splits),
            2288: (group, rows, self.kv_heads, 1, self.splits), 2452: self.sms, 2488: (self.kv_heads, rows, group, changed.get("queries", 1))})
        of.put("I", {
            432: divisor(self.page_size), 444: divisor(-(-self.page_size // TILE_TOKENS[head])), 456: divisor(group), 1900: divisor(1),
            2408: divisor(group), 2504: divisor(self.kv_heads), 2516: divisor(self.splits)})
        of.put("f", {1808: head**-0.5 * math.log2(math.e)})
        self.kernels.attention[self.suffix, head, self.is_causal, is_split].launch((self.sms, 1, 1), (256, 1, 1), [of.bytes], SHARED_MEM)
        if is_split:
            self.merge(rows, part_head, part)
        else:
            self.metadata[-1] = 0

    def merge(self, rows, part_head, part):
        of, head = Parameter(232), self.head_dim
        of.put("q", {
            0: self.parts.data_ptr(), 32: (head, part, part_head), 64: self.lse_of_parts.data_ptr(), 88: (self.heads * rows, rows),
            112: self.out.data_ptr(), 120: (self.heads * head, head), 144: self.lse.data_ptr(), 152: rows, 192: self.first_rows.data_ptr(),
            208: (self.splits_at, self.order_at, self.semaphore_at)})
        of.put("i", {8: (rows, head, self.splits, self.heads, 1), 72: (rows, self.splits, self.heads, 1)})
        of.put("I", {168: divisor(rows), 180: divisor(self.heads)})
        log = max(4 if head == 64 else 5, (self.splits - 1).bit_length())
        self.kernels.merges[self.suffix, head, log].launch((-(-self.heads // ROWS[head]), 1, rows), (256, 1, 1), [of.bytes], SHARED_MEM_OF_MERGES)

    def errors(self):
        """Mean and largest error of the output, largest of lse; what is not written counts as infinite."""
        import torch
        outputs, lses = [], []
        for row, length in enumerate(self.lengths):
            pages = self.table[row, :-(-length // self.page_size)].long()
            k, v = (self.caches[0][which, pages].double().flatten(0, 1)[:length] for which in (0, 1))
            scores = torch.einsum("hgd,thd->hgt", self.q[row].double().view(self.kv_heads, -1, self.head_dim), k) * self.head_dim**-0.5
            lses.append(torch.logsumexp(scores, -1).flatten())
            outputs.append(torch.einsum("hgt,thd->hgd", torch.softmax(scores, -1), v).reshape(self.heads, -1))
        error = (self.out.double() - torch.stack(outputs)).abs().nan_to_num(float("inf"))
        of_lse = (self.lse.double() - torch.stack(lses, 1)).abs().nan_to_num(float("inf"))
        bits = hashlib.sha256(self.out.view(torch.int16).cpu().numpy().tobytes() + self.lse.cpu().numpy().tobytes()).hexdigest()
        return {"mean": error.mean().item(), "largest": error.max().item(), "lse": of_lse.max().item(), "bits": bits,
                "counts_from_0": int(self.metadata[-1]) == 0}


def shapes():
    """Name -> (lengths, heads, KV heads, head size, page size, parts)."""
    draw = random.Random(3)
    lengths = lambda count, high: [draw.randrange(1, high + 1) for _ in range(count)]
    out = {}
    for page in (1, 16, 64):
        out |= {f"one token, pages of {page}": ([1], 32, 8, 128, page, 32), f"1 x 32k, pages of {page}": ([32000], 32, 8, 128, page, 32),
                f"mixed, pages of {page}": ([1, 16, 17, 160, 33, 1900, 300], 32, 8, 128, page, 32),
                f"in one part, pages of {page}": (lengths(7, 2000), 32, 8, 128, page, 1),
                f"40 x 1..2000, pages of {page}": (lengths(40, 2000), 32, 8, 128, page, 32),
                f"200 x 1..500, pages of {page}": (lengths(200, 500), 32, 8, 128, page, 32),
                f"heads of 64, pages of {page}": (lengths(9, 9000), 32, 8, 64, page, 16),
                f"heads of 64, in short sequences, pages of {page}": (lengths(9, 2000), 14, 2, 64, page, 32)}
    for heads, kv_heads in ((16, 8), (64, 8), (28, 4), (4, 1), (32, 32)):
        out[f"{heads} heads on {kv_heads}"] = (lengths(7, 3000), heads, kv_heads, 128, 1, 32)
    out["100, three of them long"] = ([2000 if i in (0, 40, 99) else 60 for i in range(100)], 32, 8, 128, 1, 32)
    return out


def is_solved(shape, suffix):
    """In fp16 the folder has pages of 1 and 16 tokens."""
    return not suffix or shape[4] <= 16


def replayed(kernels):
    """A graph captured with one set of lengths, replayed with others."""
    import torch
    draw, out = random.Random(5), {}
    for page_size in (1, 64):
        batch = Batch(kernels, [8] * 20, 32, 8, 128, page_size, 32, longest=2000)
        batch.prepare()
        batch.attend()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            batch.prepare()
            batch.attend()
        for turn in range(3):
            batch.fill([draw.randrange(1, 2000 if turn % 2 else 200) for _ in range(20)])
            graph.replay()
            out[f"replayed, pages of {page_size}, {turn}"] = batch.errors()
    return out


def child(cubins, out_path):
    import torch
    from graph_time import graph_us, nodes_for
    torch.zeros(1, device="cuda")  # makes the context
    kernels = Kernels(cubins)
    out = {"errors": {}, "times": {}}
    for name, shape in shapes().items():
        for is_causal, suffix in ((is_causal, suffix) for is_causal in (True, False) for suffix in TYPES if is_solved(shape, suffix)):
            batch = Batch(kernels, *shape, is_causal=is_causal, suffix=suffix)
            batch.prepare()
            batch.attend()
            out["errors"][f"{name}{'' if is_causal else ', not causal'}{suffix}"] = batch.errors()
    out["launches"] = len(out["errors"])
    out["errors"] |= replayed(kernels)
    batch = Batch(kernels, [50, 700], 32, 8, 128, 1, 1)
    batch.prepare()
    sinks = torch.zeros(32, device="cuda", dtype=torch.bfloat16)
    batch.attend(sinks=sinks.data_ptr())
    out["sinks"] = batch.out.double().sum().item()
    for head_dim, page_size, suffix in ((128, 1, ""), (128, 64, ""), (64, 1, ""), (128, 1, "_fp16"), (64, 1, "_fp16")):
        for count, length, longest in ((1, 4096, 4096), (8, 2048, 2048), (32, 256, 2048), (32, 2048, 2048), (32, 2048, 32768), (128, 1024, 2048)):
            moved = count * length * 8 * head_dim * 4
            layers = max(1, min(nodes_for(moved), CACHES // moved))
            batch = Batch(kernels, [length] * count, 32, 8, head_dim, page_size, SPLITS, longest=longest, layers=max(layers, 2), is_poisoned=False, suffix=suffix)
            batch.prepare()
            turn = iter(range(1 << 30))
            out["times"][f"{count} x {length} of up to {longest}, heads of {head_dim}, pages of {page_size}{suffix}"] = {
                "us": graph_us(lambda: batch.attend(next(turn) % layers), moved), "moved": moved, "head_dim": head_dim, "page_size": page_size, "suffix": suffix,
                "axes": {"batch_size": count, "num_pages": batch.caches[0].shape[1], "max_pages": batch.width}}
            del batch
    json.dump(out, open(out_path, "w"))


def keep(kept, before, us, merged_us):
    """`us`: with all of ours; `merged_us`: with what merges parts alone."""
    rows, engine = before["axes"]["batch_size"], "sglang-kernel's FlashAttention 3"
    kept.add(f"gqa_page_table_decode_h32_kv8_d{before['head_dim']}_ps{before['page_size']}{before['suffix']}", engine, us, before["us"], **before["axes"])
    kept.add(f"decode_combine_sorted_d{before['head_dim']}{before['suffix']}", f"{engine}, with attention before it", merged_us, before["us"], batch_size=rows,
             len_indptr=rows + 1, rows=rows, splits=SPLITS, num_qo_heads=32)


def main():
    args = read_arguments(__doc__)
    build, cubins = args.build, args.cubins
    if args.child:
        return child(cubins, args.child)
    say = lambda is_fine, text: print(f"{'PASS' if is_fine else 'FAIL'} sglang_attention.{text}", flush=True) or is_fine
    under = lambda folder: run_side([build, cubins], {"LD_PRELOAD": f"{build}/lib/libfibshim.so", "FIBSHIM_CONFIG": str(folder)})
    own, _ = run_side([build, cubins], {})
    ours, counts = under(f"{build}/config/flash_attention")
    with tempfile.TemporaryDirectory() as scratch:
        merging = pathlib.Path(shutil.copytree(f"{build}/config/flash_attention", f"{scratch}/merging"))
        for pattern in (merging / "patterns").iterdir():
            if "combine" not in pattern.name:
                pattern.unlink()
        alone, _ = under(merging)
    fine, kept = True, KeptTimes(f"{build}/config/flash_attention")
    for name, before in own["errors"].items():
        after = ours["errors"][name]
        fine &= say(before["mean"] < 2e-3 and before["largest"] < 0.1 and before["lse"] < 1e-2 and before["counts_from_0"], f"{name}: FlashAttention's own error "
                    f"{before['mean']:.2e} in the mean, {before['largest']:.2e} at most, of lse {before['lse']:.1e}: its struct is filled rightly")
        is_right = (after["mean"] <= before["mean"] * 1.01 + 1e-9 and after["largest"] <= 2 * before["largest"] + 1e-9
                    and after["lse"] <= 2 * before["lse"] + 2e-6 and after["counts_from_0"])
        fine &= say(is_right, f"{name}: error {after['mean']:.2e} in the mean, {after['largest']:.2e} at most, of lse {after['lse']:.1e}")
        fine &= say(alone["errors"][name]["bits"] == before["bits"], f"{name}: parts merged with FlashAttention's bits")
    fine &= say(own["sinks"] == ours["sinks"], "sinks: FlashAttention's own")
    for name, before in own["times"].items():
        after = ours["times"][name]
        keep(kept, before, after["us"], alone["times"][name]["us"])
        fine &= say(after["us"] <= 1.02 * before["us"], f"{name}: {after['us']:.2f} us with what merges parts (FlashAttention {before['us']:.2f}), "
                    f"{after['moved'] / after['us'] / 1e6:.2f} TB/s")
    total = lambda outcome, name="": sum(count for (definition, which), count in counts.items() if which == outcome and name in (definition or ""))
    for name, least in (("gqa_page_table_decode", ours["launches"]), ("decode_combine_sorted", ours["launches"] * 3 // 4)):
        fine &= say(total("hit", name) >= least, f"hits of {name}: {total('hit', name)}, at least {least}")
    wanted = {f"gqa_page_table_decode_h{shape[1]}_kv{shape[2]}_d{shape[3]}_ps{shape[4]}{suffix}"
              for shape in shapes().values() for suffix in TYPES if is_solved(shape, suffix)}
    missed = wanted - {definition for (definition, outcome) in counts if outcome == "hit"}
    fine &= say(not missed, f"definitions without a hit: {sorted(missed)}")
    others = total("fallback_where", "_d128_")  # of heads of 64, which batches FlashAttention keeps is in config/shared/paged_decode/blocks.table
    fine &= say(others == 1, f"others: {others} of 1 counted as fallback_where")
    if args.keep:
        kept.write_here(args.keep)
    errors = sum(count for (_, outcome), count in counts.items() if "error" in outcome)
    fine &= say(errors == 0, f"errors: {errors}; {dict(counts)}")
    return not fine


sys.exit(main())
