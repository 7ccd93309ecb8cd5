#!/usr/bin/env python3
"""Decode attention that vLLM leaves to FlashAttention 3, without and with the folder for it (config/flash_attention).

  tests/gpu/flash_attention.py BUILD [--all-times | --kinds] [--keep FILE]

Each side is a process of its own, makes the same inputs and calls vLLM's own function as its backend does: paged
keys and values, scheduler metadata, at most 32 parts in captured graphs. Compared are the errors of output and lse from
float64, of calls and of a graph that is replayed with other lengths, and the times of replayed graphs that read more
keys and values than L2 holds, the kernel that merges parts included. What the folder is not for must run as before, and be counted.

The kernel that merges parts is told apart by folders without it, and with it alone: whatever has left the parts, the results have the
same bits as with FlashAttention's. tests/gpu/judge.sh holds it to its definition.

--all-times: only times, but of all heads and page sizes that the folder has, and of what merges parts behind FlashAttention's own attention. Pages
of one token, which SGLang has, are FlashAttention's as vLLM builds it, too.

--kinds: only attention with sinks, with a window, and with both, results and times. vLLM frees the pages before a window: so do these tables.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from counters import read_counts
from kept_times import KeptTimes

CACHES = 400 << 20  # bytes of keys and values that a timed graph reads at least
PARTS = 32  # of a sequence at most, as in vLLM's graphs
POISON = float("nan")
TYPES = {"": "bfloat16", "_fp16": "float16"}  # by a definition's suffix
LONGEST = 32768  # tokens of a sequence, as a launch tells it
# What attention has besides, by a definition's name, with heads, KV heads and head size of gpt-oss and Gemma 3 27B.
KINDS = (("sink_", 64, 8, 64), ("window_sink_", 64, 8, 64), ("window_", 32, 16, 128))
# Two shapes are known to be slower, and fail here (tests/bench/RESULTS.md): a launch tells neither lengths nor their order, and
# leaving all such launches to FlashAttention would lose 28 to 42 % where sequences are short.


def shapes():
    """Name -> (lengths, heads, KV heads, head size, page size, parts)."""
    draw = random.Random(3)
    lengths = lambda count, low, high: [draw.randrange(low, high + 1) for _ in range(count)]
    spread = lambda count, low, high: [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]
    out = {"one token": ([1], 32, 8, 128, 16, PARTS), "1 x 100": ([100], 32, 8, 128, 16, PARTS),
           "1 x 32k": ([32000], 32, 8, 128, 16, PARTS), "mixed": ([1, 16, 17, 160, 0, 33, 1900, 300], 32, 8, 128, 16, PARTS),
           "32 x 32..160": (lengths(32, 32, 160), 32, 8, 128, 16, PARTS), "in one part": (lengths(7, 1, 2000), 32, 8, 128, 16, 1),
           "parts by its own rule": (lengths(2, 1, 9000), 32, 8, 128, 16, 0),
           "16 x 32..2048": (spread(16, 32, 2048), 32, 8, 128, 16, PARTS), "40 x 1..2000": (lengths(40, 1, 2000), 32, 8, 128, 16, PARTS),
           "200 x 1..500": (lengths(200, 1, 500), 32, 8, 128, 16, PARTS), "256 x 50": ([50] * 256, 32, 8, 128, 16, PARTS)}
    for heads, kv_heads, head_dim, page in ((32, 32, 128, 16), (16, 8, 128, 32), (24, 8, 128, 16), (12, 2, 128, 64), (40, 8, 128, 16),
                                            (28, 4, 128, 128), (64, 8, 128, 16), (4, 1, 128, 16), (32, 8, 64, 16), (14, 2, 64, 32)):
        out[f"{heads} heads on {kv_heads} of {head_dim}, pages of {page}"] = (lengths(9, 1, 2000), heads, kv_heads, head_dim, page, PARTS)
    # What merges parts: up to 16, 32, 64 and more of heads of 64 and 128; a few long sequences among many.
    for head_dim, heads, kv_heads in ((128, 4, 1), (64, 14, 2), (128, 8, 1)):
        for parts in (2, 16, 32, 60, 100, 200):
            out[f"{heads} heads of {head_dim}, up to {parts} parts"] = ([32000, 1, 9000], heads, kv_heads, head_dim, 16, parts)
    out["100, three of them long"] = ([2000 if i in (0, 40, 99) else 60 for i in range(100)], 32, 8, 128, 16, PARTS)
    return out


def window_of(kind, heads, kv_heads, head_dim):
    """How many tokens before the last are attended to; None: all. The window of gpt-oss, of Mistral, or of Gemma 3."""
    return None if not kind.startswith("window") else 127 if head_dim == 64 else 4095 if heads == 4 * kv_heads else 1023


def longest_of(kind):
    """How long a sequence may be for the folder to take the launch. Sinks alone are left to FlashAttention where it may be longer."""
    return 2048 if kind == "sink_" else LONGEST


def kind_shapes():
    """Name -> (lengths, heads, KV heads, head size, page size, parts, kind, the longest that there may be)."""
    draw = random.Random(7)
    out = {}
    for kind, heads, kv_heads, head_dim in KINDS:
        window, most = window_of(kind, heads, kv_heads, head_dim) or 127, longest_of(kind)
        upto = lambda length: draw.randrange(1, min(length, most) + 1)
        around = [max(window + more, 0) for more in (-window, -20, -1, 0, 1, 2, 15, 16, 17, 18, 33, 100)]
        lengths = {"1 x 1": [1], "1 x 500": [500], "one long": [min(30000, most)], "around the window": around, "without tokens": [0, 1, 300, 0, min(5000, most), 0],
                   "8 x 1..9000": [upto(9000) for _ in range(8)], "32 x 1..3000": [upto(3000) for _ in range(32)],
                   "64 x 1..1500": [upto(1500) for _ in range(64)]}
        for longest, names in ((most, lengths), (2048, ("1 x 500", "32 x 1..2048"))):
            for name in names:
                of_name = lengths[name] if name in lengths else [draw.randrange(1, 2049) for _ in range(32)]
                for parts in (PARTS, 1, 0) if name in ("around the window", "without tokens") else (PARTS,):
                    out[f"{kind}{heads} heads on {kv_heads}, {name} of up to {longest}, {parts or 'its own number of'} parts"] = (
                        of_name, heads, kv_heads, head_dim, 16, parts, kind, longest)
    for kind, heads, kv_heads, head_dim in ([(kind, 64 // by, 8 // by, 64) for kind in ("sink_", "window_sink_") for by in (2, 4, 8)]
                                            + [("window_", 16, 8, 128), ("window_", 8, 4, 128), ("window_", 32, 8, 128)]):
        most = longest_of(kind)
        out[f"{kind}{heads} heads on {kv_heads}"] = ([draw.randrange(1, min(9000, most) + 1) for _ in range(9)], heads, kv_heads, head_dim, 16, PARTS, kind,
                                                     most)
    return out


def kind_cases():
    """As timed_cases(), of one head layout of each kind."""
    sizes = [(1, 96), (1, 1024), (1, 8192), (8, 1024), (8, 8192), (32, 1024), (32, 4096), (64, 1024), (64, 4096)]
    return {f"{kind}{heads} heads on {kv_heads}, {count} x {length} of up to {longest_of(kind)}":
            ([length] * count, longest_of(kind), heads, kv_heads, head_dim, 16, "", kind)
            for kind, heads, kv_heads, head_dim in KINDS for count, length in sizes if length <= longest_of(kind)}


def timed():
    """Name -> (lengths, what the launch tells as the longest that there may be)."""
    spread = lambda count, low, high: [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]
    out = {f"{count} x {length}": [length] * count
           for count, lengths in ((1, (96, 500, 4096, 32000)), (8, (96, 2048, 4096)), (16, (256,)), (32, (96, 256, 2048, 4096)), (48, (96, 2048)),
                                  (64, (256, 2048)), (128, (96, 1024)), (256, (96, 1024)))
           for length in lengths}
    out["32 x 32..160"] = [32 + i * 128 // 31 for i in range(32)]
    for count, high in ((16, 2048), (32, 2048), (64, 2048), (128, 2048), (32, 8192), (64, 16384)):
        out[f"{count} x 32..{high}"] = spread(count, 32, high)
        out[f"{count} x {high}..32"] = spread(count, high, 32)
    for count in (32, 64):
        out[f"1 x 2000, {count - 1} x 100"] = [2000] + [100] * (count - 1)
    out["1 x 32000, 31 x 100"] = [32000] + [100] * 31
    often_short = [f"{name}, of up to 32768" for name in ("1 x 96", "8 x 2048", "32 x 96", "32 x 256", "48 x 2048", "128 x 96", "256 x 96",
                                                          "32 x 32..2048", "32 x 2048..32", "1 x 2000, 31 x 100")]
    return ({name: (lengths, 2048 if max(lengths) <= 2048 else 32768) for name, lengths in out.items()}
            | {name: (out[name.rsplit(",", 1)[0]], 32768) for name in often_short})


def timed_cases():
    """Name -> (lengths, the longest, heads, KV heads, head size, page size, suffix, kind)."""
    of_both = ("1 x 500", "32 x 256", "32 x 2048")
    return {f"{name}, heads of {head_dim}{suffix}": (lengths, longest, 32, 8, head_dim, 16, suffix, "") for name, (lengths, longest) in timed().items()
            for head_dim in ((128, 64) if name in of_both else (128,)) for suffix in (TYPES if name in of_both else ("",))}


def all_cases(definitions):
    """The same of these definitions, some for each of their solutions (config/shared/paged_decode/blocks.table)."""
    out = {}
    for name in definitions:
        found = re.fullmatch(r"gqa_page_table_((?:window_|sink_)*)decode_h(\d+)_kv(\d+)_d(\d+)_ps(\d+)(_fp16|)", name)
        if not found:
            continue
        heads, kv_heads, head_dim, page_size = map(int, found.groups()[1:5])
        of_w4 = 330 // kv_heads
        batches = [(1, 500, 2048), (32, 256, 2048), (of_w4, 1024, 2048), (256, 96, 2048), (1, 4096, 32768), (32, 2048, 32768), (256, 96, 32768)]
        if page_size == 16:
            batches += [(8, 2048, 2048), (32, 2048, 2048), (of_w4, 96, 2048), (128, 1024, 2048), (8, 4096, 32768), (32, 96, 32768),
                        (64, 4096, 32768), (128, 1024, 32768)]
        out |= {f"{name}, {count} x {length} of up to {longest}": ([length] * count, longest, heads, kv_heads, head_dim, page_size, found[6], found[1])
                for count, length, longest in batches
                if count <= 256 and longest - 1 > (window_of(found[1], heads, kv_heads, head_dim) or 0)}  # else it is no window for FlashAttention
    return out


def merges(definitions):
    return [name for name in definitions if re.fullmatch("gqa_page_table_decode_h32_kv8_d(64|128)_ps16(_fp16)?", name)]


class Batch:
    """Inputs as vLLM's backend has them. `room`: sequences that the buffers hold, those beyond `lengths` being padding."""

    def __init__(self, lengths, heads, kv_heads, head_dim, page_size, parts, kind="", longest=None, layers=1, room=None, is_poisoned=True, suffix=""):
        import torch
        self.lengths, self.page_size, self.parts, self.dtype = lengths, page_size, parts, getattr(torch, TYPES[suffix])
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.room = room or len(lengths)
        self.longest = longest or max(lengths + [1])
        self.generator = torch.Generator(device="cuda").manual_seed(len(lengths) * 31 + heads)
        self.window = window_of(kind, heads, kv_heads, head_dim)
        self.sinks = torch.randn(heads, generator=self.generator, device="cuda").mul(2).add(3).bfloat16() if "sink" in kind else None
        pages = sum(-(-length // page_size) - self.first_page(length) for length in lengths) + 3
        if room:
            pages = self.room * -(-self.longest // page_size) + 3
        self.caches = [torch.empty(pages, 2, page_size, kv_heads, head_dim, device="cuda", dtype=self.dtype) for _ in range(layers)]
        self.is_poisoned = is_poisoned
        self.table = torch.zeros(self.room, -(-self.longest // page_size) + 5, device="cuda", dtype=torch.int32)
        self.lengths_on_device = torch.zeros(self.room, device="cuda", dtype=torch.int32)
        self.first_rows = torch.zeros(self.room + 1, device="cuda", dtype=torch.int32)
        self.q = torch.empty(self.room, heads, head_dim, device="cuda", dtype=self.dtype)
        self.out = torch.empty_like(self.q)
        self.metadata = None
        self.fill(lengths)

    def first_token(self, length):
        return 0 if self.window is None else max(length - 1 - self.window, 0)

    def first_page(self, length):
        return self.first_token(length) // self.page_size

    def fill(self, lengths):
        """New lengths, and all values, where the old ones were."""
        import torch
        self.lengths = lengths
        padding = self.room - len(lengths)
        pages = self.caches[0].shape[0]
        order = torch.randperm(pages, generator=self.generator, device="cuda").int()
        self.table.fill_(int(order[-1]))  # a page of nobody
        at = 0
        for row, length in enumerate(lengths):
            first, end = self.first_page(length), -(-length // self.page_size)
            self.table[row, :first] = order[-2]  # where vLLM has a page of zeros
            self.table[row, first:end] = order[at:at + end - first]
            at += end - first
        for cache in self.caches:
            cache.normal_(generator=self.generator)
            if self.is_poisoned:  # what belongs to no token may hold anything
                cache[order[at:].long()] = POISON
                cache[order[-2].long()] = 0
                for row, length in enumerate(lengths):
                    if length % self.page_size:
                        cache[self.table[row, length // self.page_size].long(), :, length % self.page_size:] = POISON
        self.q.normal_(generator=self.generator)
        self.out.fill_(POISON)
        self.lengths_on_device.copy_(torch.tensor(lengths + [0] * padding))
        self.first_rows.copy_(torch.tensor(list(range(len(lengths) + 1)) + [len(lengths)] * padding))

    def schedule(self):
        import torch
        from vllm.vllm_flash_attn import get_scheduler_metadata
        made = get_scheduler_metadata(
            batch_size=self.room, max_seqlen_q=1, max_seqlen_k=self.longest, num_heads_q=self.heads, num_heads_kv=self.kv_heads,
            headdim=self.head_dim, cache_seqlens=self.lengths_on_device, qkv_dtype=self.dtype, cu_seqlens_q=self.first_rows,
            page_size=self.page_size, causal=True, window_size=self.window_size(), num_splits=self.parts)
        if self.metadata is None:
            self.metadata = made
        else:
            self.metadata.copy_(made)

    def window_size(self):
        return [-1, -1] if self.window is None else [self.window, 0]

    def attend(self, layer=0, **changed):
        from vllm.vllm_flash_attn import flash_attn_varlen_func
        k, v = self.caches[layer].unbind(1)
        return flash_attn_varlen_func(**{**dict(
            q=self.q, k=k, v=v, out=self.out, max_seqlen_q=1, cu_seqlens_q=self.first_rows, max_seqlen_k=self.longest,
            seqused_k=self.lengths_on_device, softmax_scale=self.head_dim**-0.5, causal=True, window_size=self.window_size(), s_aux=self.sinks,
            block_table=self.table, scheduler_metadata=self.metadata, num_splits=self.parts, fa_version=3,
            return_softmax_lse=True), **changed})

    def errors(self, lse):
        """Mean and largest error of the output, largest of lse; what is not written counts as infinite."""
        import torch
        k_and_v = self.caches[0]
        output, lses = [], []
        for row, length in enumerate(self.lengths):
            first, first_page = self.first_token(length), self.first_page(length)
            pages = self.table[row, first_page:-(-length // self.page_size)].long()
            kept = slice(first - first_page * self.page_size, length - first_page * self.page_size)
            k, v = (k_and_v[pages, which].double().flatten(0, 1)[kept] for which in (0, 1))
            q = self.q[row].double().view(self.kv_heads, -1, self.head_dim)
            scores = torch.einsum("hgd,thd->hgt", q, k) * self.head_dim**-0.5
            total = torch.logsumexp(scores, -1)
            if self.sinks is not None and length:
                total = total.logaddexp(self.sinks.double().view_as(total))
            lses.append(total.flatten())
            output.append(torch.einsum("hgt,thd->hgd", torch.exp(scores - total[..., None]), v).reshape(self.heads, self.head_dim)
                          if length else torch.zeros(self.heads, self.head_dim, device="cuda", dtype=torch.float64))
        count = len(self.lengths)
        error = (self.out[:count].double() - torch.stack(output)).abs().nan_to_num(float("inf"))
        wanted = torch.stack(lses, 1)
        of_lse = torch.where(lse[:, :count].double() == wanted, 0, (lse[:, :count].double() - wanted).abs()).nan_to_num(float("inf"))
        is_padding_kept = bool(self.out[count:].isnan().all())
        return {"mean": error.mean().item(), "largest": error.max().item(), "lse": of_lse.max().item(), "keeps_padding": is_padding_kept,
                "bits": self.bits(lse), "counts_from_0": self.metadata is None or int(self.metadata[-1]) == 0}

    def bits(self, lse):
        """Of all that was written; NaNs are alike."""
        import torch
        made = hashlib.sha256()
        for tensor in (self.out, lse[:, :len(self.lengths)]):
            made.update(torch.where(tensor.isnan(), 0.5, tensor.float()).cpu().contiguous().numpy().tobytes())
        return made.hexdigest()


def replayed(suffix="", of=(32, 8, 128), kind="", longest=2000):
    """A graph captured with one set of lengths, replayed with others, some sequences being padding. With sinks or a window it makes its own
    schedule, as in models that have layers with and without: vLLM makes none for those."""
    import torch
    draw = random.Random(5)
    batch = Batch([8] * 20, *of, 16, PARTS, kind, room=20, longest=longest, suffix=suffix)
    schedule = (lambda: None) if kind else batch.schedule
    schedule()
    batch.attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = batch.attend()
    out = {}
    for turn, count in enumerate((20, 13, 1, 17)):
        batch.fill([draw.randrange(1, longest if turn % 2 else 200) for _ in range(count)])
        schedule()
        lse.fill_(POISON)
        graph.replay()
        out[f"replayed, {kind}{count} of 20{suffix}"] = batch.errors(lse)
    return out


def others():
    """What the folder is not for."""
    import torch
    batch = Batch([50, 700], 32, 8, 128, 16, PARTS)
    batch.schedule()
    sinks = torch.zeros(32, device="cuda", dtype=torch.bfloat16)
    batch.attend(s_aux=sinks)
    once = batch.out.clone()
    batch.attend(s_aux=sinks)  # by the same metadata: whoever counts there finds 0 again
    assert torch.equal(once, batch.out)
    with_sinks = batch.out.double().sum().item()
    two = Batch([50, 700], 32, 8, 128, 16, 0)
    two.first_rows.copy_(torch.tensor([0, 1, 2]))
    two.attend(max_seqlen_q=2)
    odd = Batch([50, 700], 16, 1, 128, 16, PARTS)
    odd.schedule()
    odd.attend()
    return {"sinks": with_sinks, "two": two.out.double().sum().item(), "odd": odd.out.double().sum().item()}


def errors_of_kinds():
    out = errors_of((name, shape, "") for name, shape in kind_shapes().items())
    for kind, *of in KINDS:
        out |= replayed(of=of, kind=kind, longest=min(8192, longest_of(kind)))
    return out


def errors_of_all():
    out = errors_of((name, shape, suffix) for suffix in TYPES for name, shape in shapes().items() if not suffix or shape[4] == 16)
    for suffix in TYPES:
        out |= replayed(suffix)
    return out


def errors_of(cases):
    import torch
    out = {}
    for name, shape, suffix in cases:
        batch = Batch(*shape, suffix=suffix)
        batch.schedule()
        _, lse = batch.attend()
        once = batch.errors(lse)
        first = batch.out.clone()
        batch.out.fill_(POISON)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            batch.attend()
        graph.replay()
        out[name + suffix] = {**once, "same_in_graph": torch.equal(first, batch.out)}
    return out


def times_of(cases):
    from graph_time import graph_us, nodes_for
    out = {}
    for name, (lengths, longest, heads, kv_heads, head_dim, page_size, suffix, kind) in cases.items():
        window = window_of(kind, heads, kv_heads, head_dim)
        moved = sum(length if window is None else min(length, window + 1) for length in lengths) * kv_heads * head_dim * 4
        layers = max(1, min(nodes_for(moved), CACHES // moved))
        batch = Batch(lengths, heads, kv_heads, head_dim, page_size, PARTS, kind, longest, layers, is_poisoned=False, suffix=suffix)
        batch.schedule()
        turn = iter(range(1 << 30))
        us = graph_us(lambda: batch.attend(next(turn) % layers), moved)
        out[name] = {"us": us, "moved": moved, "definition": f"gqa_page_table_{kind}decode_h{heads}_kv{kv_heads}_d{head_dim}_ps{page_size}{suffix}",
                     "merge": f"decode_combine_d{head_dim}{suffix}", "heads": heads,
                     "axes": {"batch_size": len(lengths), "num_pages": batch.caches[0].shape[0], "max_pages": -(-longest // page_size)}}
        del batch
    return out


def child(args):
    import torch
    from graph_time import graph_us
    definitions = KeptTimes(args.build / "config/flash_attention").axes
    cases = {"": dict, "some": timed_cases, "all": lambda: all_cases(definitions), "merges": lambda: all_cases(merges(definitions)),
             "kinds": kind_cases}[args.times]()
    out = {"errors": errors_of_all(), "others": others()} if args.times in ("", "some") else {}
    if args.times == "kinds":
        out["errors"] = errors_of_kinds()
    out["times"] = times_of(cases)
    copied = torch.empty(CACHES, device="cuda", dtype=torch.uint8)
    to = torch.empty_like(copied)
    out["copy"] = 2 * CACHES / graph_us(lambda: to.copy_(copied), 2 * CACHES) * 1e6
    json.dump(out, open(args.child, "w"))


def folder_of(args, path, has_attention, has_combine):
    """The folder with a part of it."""
    shutil.copytree(args.build / "config/flash_attention", path)
    families = {"gqa_page_table_decode": has_attention, "gqa_paged_decode_planned": has_attention, "decode_combine": has_combine,
                "decode_combine_sorted": has_combine}
    for family, is_kept in families.items():
        for kind in ("definitions", "solutions/fibshim") if not is_kept else ():
            shutil.rmtree(path / kind / family)
    for pattern in (path / "patterns").iterdir():
        if not (has_combine if pattern.name.startswith("flash-attention-3-combine") else has_attention):
            pattern.unlink()
    return path


def side(args, environment, prefix, times="some"):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([*prefix, sys.executable, __file__, str(args.build), "--child", file.name, "--times", times], check=True,
                       env={**os.environ, **environment})
        return json.load(open(file.name))


def keep_time(kept, before, us):
    kept.add(before["definition"], "FlashAttention 3", us, before["us"], **before["axes"])


def keep_merge(kept, before, us):
    rows = before["axes"]["batch_size"]
    kept.add(before["merge"], "FlashAttention 3, with attention before it", us, before["us"], batch_size=rows, len_indptr=rows + 1, rows=rows, splits=PARTS,
             num_qo_heads=before["heads"])


def all_times(args, say):
    config, kept = args.build / "config/flash_attention", KeptTimes(args.build / "config/flash_attention")
    with tempfile.TemporaryDirectory() as stats:
        under = lambda folder, times: side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", folder, "--"], times)["times"]
        own = side(args, {}, [], "all")["times"]
        ours = under(config, "all")
        counts = read_counts(stats)
        merged = under(folder_of(args, pathlib.Path(stats, "alone"), False, True), "merges")
    for name, before in own.items():
        of_ours = [("", ours[name]["us"])] if kept.solution_for(before["definition"], **before["axes"]) else []
        for what, us in of_ours + ([(", merged alone", merged[name]["us"])] if name in merged else []):
            (keep_merge if what else keep_time)(kept, before, us)
            say(us <= 1.02 * before["us"], f"{name}{what}: {us:.2f} us (FlashAttention {before['us']:.2f})")
    missed = {before["definition"] for before in own.values()} - {name for name, outcome in counts if outcome == "hit"}
    say(not missed, f"definitions without a hit: {sorted(missed)}")
    if args.keep:
        kept.write_here(args.keep)
    return 0


def compare_errors(own, ours, say):
    for name, before in own["errors"].items():
        after = ours["errors"][name]
        is_right = (after["mean"] <= before["mean"] * 1.01 + 1e-9 and after["largest"] <= 2 * before["largest"] + 1e-9
                    and after["lse"] <= 2 * before["lse"] + 1e-6 and after["keeps_padding"] and after.get("same_in_graph", True))
        say(is_right, f"{name}: error {after['mean']:.2e} in the mean, {after['largest']:.2e} at most, of lse {after['lse']:.1e} "
            f"(FlashAttention {before['mean']:.2e}, {before['largest']:.2e}, {before['lse']:.1e})")


def kinds_alone(args, say):
    """Results and times of attention with sinks, with a window, and with both."""
    config, kept = args.build / "config/flash_attention", KeptTimes(args.build / "config/flash_attention")
    with tempfile.TemporaryDirectory() as stats:
        own = side(args, {}, [], "kinds")
        ours = side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", config, "--"], "kinds")
        counts = read_counts(stats)
    compare_errors(own, ours, say)
    for name, before in own["times"].items():
        us = ours["times"][name]["us"]
        keep_time(kept, before, us)
        say(us <= 1.02 * before["us"], f"{name}: {us:.2f} us (FlashAttention {before['us']:.2f})")
    missed = {name for name in kept.axes if re.match("gqa_page_table_(window|sink)_", name)} - {name for name, outcome in counts if outcome == "hit"}
    say(not missed, f"definitions without a hit: {sorted(missed)}; {dict(counts)}")
    if args.keep:
        kept.write_here(args.keep)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/flash_attention`")
    parser.add_argument("--all-times", action="store_true", help="times of all heads and page sizes, and nothing else")
    parser.add_argument("--kinds", action="store_true", help="only attention with sinks, with a window, and with both")
    parser.add_argument("--times", default="some", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    args.build = args.build.resolve()
    say = lambda is_fine, text: print(f"{'PASS' if is_fine else 'FAIL'} flash_attention.{text}", flush=True)
    if args.all_times or args.kinds:
        return (all_times if args.all_times else kinds_alone)(args, say)
    with tempfile.TemporaryDirectory() as stats:
        under = lambda folder, **others: side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", folder, "--"], **others)
        own = side(args, {}, [])
        ours = under(args.build / "config/flash_attention", times="")
        counts = read_counts(stats)  # without what is timed, of which some is FlashAttention's
        ours["times"] = under(args.build / "config/flash_attention")["times"]
        folders = pathlib.Path(stats)
        without = under(folder_of(args, folders / "without", True, False))
        alone = under(folder_of(args, folders / "alone", False, True), times="")
    compare_errors(own, ours, say)
    for name, before in own["errors"].items():
        for what, one, other in (("FlashAttention's parts", before, alone["errors"][name]), ("our parts", without["errors"][name], ours["errors"][name])):
            say(one["bits"] == other["bits"] and other["counts_from_0"], f"merge of {what}, {name}: {'the same' if one['bits'] == other['bits'] else 'other'} "
                f"bits as by FlashAttention, the count is {'0' if other['counts_from_0'] else 'not 0'} again")
    say(own["others"] == ours["others"], f"others: what the folder is not for is FlashAttention's own: {own['others']}, {ours['others']}")
    for outcome, expected in (("fallback_where", 3), ("fallback_no_solution", 1)):  # two kernels, and what merges the parts of one
        found = sum(count for (_, which), count in counts.items() if which == outcome)
        say(found == expected, f"others: {found} of {expected} counted as {outcome}")
    kept = KeptTimes(args.build / "config/flash_attention")
    for name, before in own["times"].items():
        after = ours["times"][name]
        keep_time(kept, before, after["us"])
        say(after["us"] <= 1.02 * before["us"], f"{name}: {after['us']:.2f} us (FlashAttention {before['us']:.2f}; its merge behind our parts "
            f"{without['times'][name]['us']:.2f}), "
            f"{after['moved'] / after['us'] / 1e6:.2f} TB/s of {own['copy'] / 1e12:.2f} that a copy reaches")
    if args.keep:
        kept.write_here(args.keep)
    hits = {name: count for (name, outcome), count in counts.items() if outcome == "hit"}
    merged = {f"decode_combine_d{head_dim}{suffix}" for head_dim in (64, 128) for suffix in TYPES}
    in_fp16 = sum(name.endswith("_fp16") for name in hits)
    say(len(hits) - in_fp16 >= 13 and in_fp16 >= 11 and merged <= hits.keys(), f"hits: {hits}")
    errors = sum(count for (_, outcome), count in counts.items() if outcome.startswith("error"))
    say(errors == 0, f"errors: {errors}; {dict(counts)}")
    return 0


sys.exit(main())
