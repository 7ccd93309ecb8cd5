#!/usr/bin/env python3
"""FlashInfer's decode attention, without and with the folder for it (config/flash_attention).

  tests/gpu/flashinfer_decode.py BUILD CUBINS [--keep FILE]

CUBINS is build/flashinfer_decode, which `tests/engines/engines.py decode` has filled: the kernels as FlashInfer compiles them.
They are launched by the driver as FlashInfer launches them, with its plan: whole sequences, or parts that its own kernel
merges, and parts that are none in graphs. Each side is a process of its own and makes the same inputs. Compared are the errors
of output and lse from float64, and the times of replayed graphs that read more keys and values than L2 holds. What the folder
is not for must run as before, and be counted.
"""
import ctypes
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys

from counters import FIBSHIM, read_arguments, run_side
from kept_times import KeptTimes

CACHES = 400 << 20  # bytes of keys and values that a timed graph reads at least
POISON = float("nan")
TYPES = {"bf16": ("bfloat16", ""), "fp16": ("float16", "_fp16")}  # a definition's suffix
OFFSETS = {  # of the parameter's fields, with how they are packed
    "q": (0, "q"), "page_size": (8, "i"), "shift": (20, "i"), "page_size_again": (24, "i"), "kv_heads": (28, "i"),
    "head_dim": (32, "i"), "batch_size": (36, "i"), "page_stride": (40, "i"), "token_stride": (44, "i"), "head_stride": (48, "i"),
    "page_stride_of_v": (52, "i"), "token_stride_of_v": (56, "i"), "head_stride_of_v": (60, "i"), "k": (64, "q"), "v": (72, "q"),
    "indices": (80, "q"), "indptr": (88, "q"), "last_page_lengths": (96, "q"), "output": (112, "q"), "lse": (120, "q"),
    "softcap": (136, "d"), "scale": (144, "d"), "padded_batch_size": (168, "i"), "heads": (172, "i"), "q_stride": (176, "i"),
    "q_head_stride": (180, "i"), "window_left": (184, "i"), "sequences": (192, "q"), "chunks": (200, "q"), "first_parts": (208, "q"),
    "chunk_size": (216, "q"), "is_part": (224, "q"), "is_cut": (232, "b")}


def parameter(fields):
    out = bytearray(240)
    for name, value in fields.items():
        offset, kind = OFFSETS[name]
        struct.pack_into(kind, out, offset, value)
    return out


class Image:
    """A cubin of FlashInfer's, with its decode kernels by group of heads, and what merges parts."""

    def __init__(self, path):
        from solutions import Kernel
        of_type, head_dim = path.stem.split(".")[-3:-1]
        self.dtype, self.suffix = TYPES[of_type]
        self.head_dim = int(head_dim)
        self.threads = self.head_dim // 8  # of a token
        out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, stdout=subprocess.PIPE,
                             env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
        names = [kernel["name"] for kernel in json.loads(out)["files"][0]["kernels"]]
        whole = lambda data: (ctypes.c_ubyte * 240).from_buffer_copy(data)
        self.decode = {int(found[1]): Kernel(str(path), name, [whole]) for name in names
                       if (found := re.search(r"BatchDecode.*ModeE0ELj2ELj\d+ELj8ELj\d+ELj(\d+)E", name))}
        types = [ctypes.c_void_p] * 5 + [ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint]
        self.merge, = (Kernel(str(path), name, types) for name in names
                       if f"MergeStatesKernelILj8ELj{self.threads}ELj{128 // self.threads}E" in name)


def blocks_to_an_sm(kernel, threads, shared):
    from solutions import call
    count = ctypes.c_int()
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(count), kernel.function, threads, ctypes.c_size_t(shared))
    return count.value


class Batch:
    """Inputs, and FlashInfer's plan for them. `is_for_graphs`: as many parts as the GPU has room for, most of which are none."""

    def __init__(self, image, lengths, heads, kv_heads, page_size, is_for_graphs=False, by_head=False, layers=1, is_poisoned=True):
        import torch
        self.dtype = getattr(torch, image.dtype)
        self.image, self.lengths, self.heads, self.kv_heads, self.page_size = image, lengths, heads, kv_heads, page_size
        self.by_head = by_head
        generator = torch.Generator(device="cuda").manual_seed(len(lengths) * 31 + heads)
        self.pages = [-(-length // page_size) for length in lengths]
        count = sum(self.pages) + 3
        shape = (kv_heads, page_size) if by_head else (page_size, kv_heads)
        self.caches = [torch.empty(2, count, *shape, image.head_dim, device="cuda", dtype=self.dtype).normal_(generator=generator)
                       for _ in range(layers)]
        order = torch.randperm(count, generator=generator, device="cuda").int()
        self.indices = order[:-3].contiguous() if count > 3 else order[:1]
        ints = lambda values: torch.tensor(values, device="cuda", dtype=torch.int32)
        starts = [sum(self.pages[:i]) for i in range(len(lengths) + 1)]
        self.indptr = ints(starts)
        self.last_page_lengths = ints([(length - 1) % page_size + 1 if length else 0 for length in lengths])
        if is_poisoned:  # what belongs to no token may hold anything
            for cache in self.caches:
                cache[:, order[-3:].long()] = POISON
                for start, pages, length in zip(starts, self.pages, lengths):
                    if length % page_size:
                        page = self.view(cache)[:, int(self.indices[start + pages - 1])]
                        page[:, length % page_size:] = POISON
        self.q = torch.empty(len(lengths), heads, image.head_dim, device="cuda", dtype=self.dtype).normal_(generator=generator)
        self.out = torch.full_like(self.q, POISON)
        self.lse = torch.full((len(lengths), heads), POISON, device="cuda")
        self.plan(is_for_graphs, ints)

    def view(self, cache):
        """[2, pages, tokens, heads, head_dim]"""
        return cache.transpose(2, 3) if self.by_head else cache

    def plan(self, is_for_graphs, ints):
        import torch
        group, head_dim, threads = self.heads // self.kv_heads, self.image.head_dim, self.image.threads
        rows = max(128, threads * group) // (threads * group)  # of tokens
        tile = 4 if group == 1 else 1
        self.block = (threads, group, rows)
        self.shared = max(8 * tile * group * rows * head_dim, 4 * rows * group * head_dim) + max(tile * 128 * 8, 8 * group * rows)
        self.kernel = self.image.decode[group]
        room = blocks_to_an_sm(self.kernel, 128, self.shared) * torch.cuda.get_device_properties(0).multi_processor_count
        parts_of = lambda size: sum(-(-max(pages, 1) // size) for pages in self.pages)
        size = max(self.pages + [1])
        self.is_cut = len(self.lengths) * self.kv_heads < room
        if self.is_cut:
            least = max(128 // self.page_size, 1)
            size = next((size for size in range(least, size) if parts_of(size) * self.kv_heads <= room), max(least, size))
            self.is_cut = is_for_graphs or parts_of(size) > len(self.lengths)
        chunks = [(i, chunk) for i, pages in enumerate(self.pages) for chunk in range(-(-max(pages, 1) // size))]
        self.parts = max(len(chunks), room // self.kv_heads) if is_for_graphs and self.is_cut else len(chunks)
        padding = [1 << 30] * (self.parts - len(chunks))
        self.sequences, self.chunks = (ints([chunk[which] for chunk in chunks] + padding) for which in (0, 1))
        counts = [sum(i == sequence for sequence, _ in chunks) for i in range(len(self.lengths))]
        self.first_parts = ints([sum(counts[:i]) for i in range(len(counts) + 1)])
        self.chunk_size = ints([size * self.page_size])
        self.is_part = torch.arange(self.parts, device="cuda") < len(chunks) if is_for_graphs and self.is_cut else None
        self.partial = torch.full((self.parts, self.heads, head_dim), POISON, device="cuda", dtype=self.dtype)
        self.partial_lse = torch.full((self.parts, self.heads), POISON, device="cuda")

    def attend(self, layer=0, **changed):
        import torch
        k, v = self.caches[layer]
        token, head = self.view(self.caches[layer]).stride()[2:4]
        to, lse = (self.partial, self.partial_lse) if self.is_cut else (self.out, self.lse)
        at = lambda tensor: 0 if tensor is None else tensor.data_ptr()
        fields = dict(
            q=at(self.q), page_size=self.page_size, shift=self.page_size.bit_length() - 1, page_size_again=self.page_size,
            kv_heads=self.kv_heads, head_dim=self.image.head_dim, batch_size=len(self.lengths), page_stride=k.stride(0), token_stride=token,
            head_stride=head, page_stride_of_v=v.stride(0), token_stride_of_v=token, head_stride_of_v=head, k=at(k), v=at(v),
            indices=at(self.indices), indptr=at(self.indptr), last_page_lengths=at(self.last_page_lengths), output=at(to), lse=at(lse),
            scale=self.image.head_dim**-0.5, padded_batch_size=self.parts, heads=self.heads, q_stride=self.q.stride(0),
            q_head_stride=self.q.stride(1), window_left=-1, sequences=at(self.sequences), chunks=at(self.chunks),
            first_parts=at(self.first_parts), chunk_size=at(self.chunk_size), is_part=at(self.is_part), is_cut=self.is_cut)
        self.kernel.launch((self.parts, self.kv_heads, 1), self.block, [parameter({**fields, **changed})], self.shared)
        if not self.is_cut:
            return
        rows = 128 // self.image.threads
        shared = 8 * rows * self.image.head_dim + 512
        sms, work = torch.cuda.get_device_properties(0).multi_processor_count, len(self.lengths) * self.heads
        blocks = sms * min(blocks_to_an_sm(self.image.merge, 128, shared), -(-work // sms))
        self.image.merge.launch((blocks, 1, 1), (self.image.threads, rows, 1),
                                [at(self.partial), at(self.partial_lse), at(self.first_parts), at(self.out), at(self.lse), len(self.lengths),
                                 0, self.heads], shared)

    def errors(self):
        """Mean and largest error of the output, largest of lse; what is not written counts as infinite."""
        import torch
        outputs, lses = [], []
        cache = self.view(self.caches[0])
        for row, (length, pages) in enumerate(zip(self.lengths, self.pages)):
            start = int(self.indptr[row])
            k, v = (cache[which, self.indices[start:start + pages].long()].double().flatten(0, 1)[:length] for which in (0, 1))
            q = self.q[row].double().view(self.kv_heads, -1, self.image.head_dim)
            scores = torch.einsum("hgd,thd->hgt", q, k) * self.image.head_dim**-0.5
            lses.append(torch.logsumexp(scores, -1).flatten() / 0.6931471805599453)
            outputs.append(torch.einsum("hgt,thd->hgd", torch.softmax(scores, -1), v).reshape(self.heads, -1))
        error = (self.out.double() - torch.stack(outputs)).abs().nan_to_num(float("inf"))
        of_lse = (self.lse.double() - torch.stack(lses)).abs().nan_to_num(float("inf"))
        return {"mean": error.mean().item(), "largest": error.max().item(), "lse": of_lse.max().item(),
                "keeps_padding": self.is_part is None or bool(self.partial[~self.is_part].isnan().all()), "cut": bool(self.is_cut)}


def shapes():
    """Name -> (lengths, heads, KV heads, page size, for graphs, by head)."""
    draw = random.Random(3)
    lengths = lambda count, high: [draw.randrange(1, high + 1) for _ in range(count)]
    out = {"one token": ([1], 32, 8, 16, False, False), "1 x 32k": ([32000], 32, 8, 16, False, False),
           "200 x 1..500, not cut": (lengths(200, 500), 32, 8, 16, False, False),
           "for graphs": (lengths(9, 3000), 32, 8, 16, True, False), "for graphs, pages of 1": (lengths(9, 3000), 16, 8, 1, True, False),
           "by head": (lengths(9, 3000), 32, 8, 16, False, True)}
    for heads, kv_heads, page in ((16, 8, 16), (16, 8, 64), (32, 8, 1), (24, 8, 16), (64, 8, 32), (32, 32, 16), (32, 4, 2), (4, 1, 16)):
        out[f"{heads} heads on {kv_heads}, pages of {page}"] = (lengths(9, 3000), heads, kv_heads, page, False, False)
    return out


TIMED = ((1, 4096), (8, 2048), (32, 256), (32, 2048), (128, 1024))


def timed_cases(definitions, images):
    """Name -> (definition, image, heads, KV heads, page size, sequences, tokens of each)."""
    out = {}
    for name in definitions:
        found = re.fullmatch(r"gqa_paged_decode_planned_h(\d+)_kv(\d+)_d(\d+)(_fp16|)", name)
        if not found:
            continue
        heads, kv_heads, head_dim = map(int, found.groups()[:3])
        image = next(image for image in images if (image.head_dim, image.suffix) == (head_dim, found[4]))
        for page, cases in ((16, TIMED), (1, ((8, 2048), (32, 2048)) if heads == 32 and kv_heads == 8 else ())):
            out |= {f"{heads} heads of {head_dim}{found[4]} on {kv_heads}, pages of {page}, {count} x {length}": (name, image, heads, kv_heads, page, count, length)
                    for count, length in cases}
    return out


def child(build, cubins, out_path):
    import torch
    from graph_time import graph_us, nodes_for
    torch.zeros(1, device="cuda")  # makes the context
    out = {"errors": {}, "times": {}}
    images = [Image(path) for path in sorted(pathlib.Path(cubins).glob("*.cubin"))]
    launches = 0
    solved = {(heads, kv_heads, 128) for heads, kv_heads in ((32, 8), (16, 8), (24, 8), (64, 8), (32, 32), (32, 4), (4, 1))} | {(32, 8, 64)}
    for at, image in enumerate(images):
        for name, shape in shapes().items():
            batch = Batch(image, *shape)
            batch.attend()
            launches += (*shape[1:3], image.head_dim) in solved and (shape[1:3] != (16, 8) or not image.suffix)
            out["errors"][f"{at}, heads of {image.head_dim}{image.suffix}, {name}"] = batch.errors()
    torch.cuda.synchronize()
    out["launches"] = launches
    whole = next(image for image in images if image.head_dim == 128)
    batch = Batch(whole, [50, 700], 32, 8, 16)
    batch.attend(softcap=30.0)  # which this kernel does not look at
    batch.attend(window_left=5)
    definitions = KeptTimes(f"{build}/config/flash_attention").axes
    for name, (definition, image, heads, kv_heads, page, count, length) in timed_cases(definitions, images).items():
        moved = count * length * kv_heads * image.head_dim * 4
        layers = max(1, min(nodes_for(moved), CACHES // moved))
        batch = Batch(image, [length] * count, heads, kv_heads, page, is_for_graphs=True, layers=layers, is_poisoned=False)
        turn = iter(range(1 << 30))
        out["times"][name] = {"us": graph_us(lambda: batch.attend(next(turn) % layers), moved), "moved": moved, "definition": definition, "axes": {
            "num_parts": batch.parts, "batch_size": count, "num_pages": batch.caches[0].shape[1], "page_size": page, "len_indptr": count + 1,
            "num_kv_indices": len(batch.indices)}}
        del batch
    json.dump(out, open(out_path, "w"))


def main():
    args = read_arguments(__doc__)
    build, cubins = args.build, args.cubins
    if args.child:
        return child(build, cubins, args.child)
    say = lambda is_fine, text: print(f"{'PASS' if is_fine else 'FAIL'} flashinfer_decode.{text}", flush=True) or is_fine
    own, _ = run_side([build, cubins], {})
    ours, counts = run_side([build, cubins], {"LD_PRELOAD": f"{build}/lib/libfibshim.so", "FIBSHIM_CONFIG": f"{build}/config/flash_attention"})
    fine, kept = True, KeptTimes(f"{build}/config/flash_attention")
    for name, before in own["errors"].items():
        after = ours["errors"][name]
        is_right = (after["mean"] <= before["mean"] * 1.02 + 1e-9 and after["largest"] <= 2 * before["largest"] + 1e-9
                    and after["lse"] <= 2 * before["lse"] + 2e-6 and after["keeps_padding"])
        fine &= say(is_right, f"{name}{', cut' if after['cut'] else ''}: error {after['mean']:.2e} in the mean, {after['largest']:.2e} at most, "
                    f"of lse {after['lse']:.1e} (FlashInfer {before['mean']:.2e}, {before['largest']:.2e}, {before['lse']:.1e})")
    for name, before in own["times"].items():
        after = ours["times"][name]
        kept.add(before["definition"], "FlashInfer", after["us"], before["us"], **before["axes"])
        fine &= say(after["us"] <= 1.02 * before["us"], f"{name}: {after['us']:.2f} us with what merges parts (FlashInfer {before['us']:.2f}), "
                    f"{after['moved'] / after['us'] / 1e6:.2f} TB/s")
    total = lambda outcome: sum(count for (_, which), count in counts.items() if which == outcome)
    fine &= say(total("hit") >= ours["launches"], f"hits: {total('hit')}, of {ours['launches']} launches outside graphs")
    fine &= say(total("fallback_where") == 2, f"others: {total('fallback_where')} of 2 counted as fallback_where")
    if args.keep:
        kept.write_here(args.keep)
    errors = sum(count for (_, outcome), count in counts.items() if "error" in outcome)
    fine &= say(errors == 0, f"errors: {errors}; {dict(counts)}")
    return not fine


sys.exit(main())
