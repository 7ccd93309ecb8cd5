#!/usr/bin/env python3
"""Rewrites of vLLM's kernels on the GPU: the kernels of a vLLM wheel in captured graphs, alone, replaced one for one, and as one.

  tests/gpu/vllm_rewrites.py BUILD KERNELS [--heads "Q,KV Q,KV..."] [--out FILE] [--keep FILE] [WHAT...]

KERNELS is _C_stable_libtorch.abi3.so of a vLLM 0.25 wheel. WHAT: norm, norm-per-token, silu, silu-per-token, qk, rope, rope-64, and
what torch.compile makes of norms and rotation of the heads: qk-compiled, of many heads in large batches qk-apart, with PyTorch 2.13 qk-once, with 2.14 qk-whole,
of Gemma 3 qk-gemma and qk-gemma-128, with 2.11 qk-gemma-sums and qk-gemma-sums-128, without norms rope-compiled, with cosines and sines in fp32 rope-float, and with a bias rope-bias and rope-bias-64; with -fp16 behind it what
there is in fp16, too; all, if left out. Those are the kernels of BUILD/inductor, which `tests/engines/engines.py inductor` compiles, without which they are left out, too;
of a kernel's configurations the fastest, since Inductor chooses so. In place of the two kernels of rope and rope-64 that torch.compile
makes are two like them, by Triton, whose code the folder is told.
Each side is a process of its own and makes the same inputs. Compared are all bytes that the kernels write, and how far they
are from what float64 says; timed are replayed graphs. A rewrite must be made wherever it can be, must not be further from float64
than vLLM, and must be faster than both other sides; of qk, rope and rope-float every byte must be vLLM's, of others nearly all.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

from kept_times import KeptTimes, finish
from report import Report
from sides import by_outcome, compare_sides, run_side

EPS = 1e-5
FP8_MAX = 448.0


class Fp8:
    """Two kernels: something, and its fp8."""
    dtypes = ("bfloat16", "float16")
    rows = (1, 8, 32, 128, 1024, 8192)
    most_that_differ = 1e-3  # of the bytes of an output


class Norm(Fp8):
    """Residual addition, norm, fp8."""
    family, axis = "fused_add_rmsnorm", "batch_size"

    def __init__(self, size, rows, dtype, per_token):
        import torch
        generator = torch.Generator(device="cuda").manual_seed(size + rows)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.x0, self.r0 = normal(rows, size).to(dtype), (3 * normal(rows, size)).to(dtype)
        self.w = (1 + 0.2 * normal(size)).to(dtype)
        self.x, self.r = self.x0.clone(), self.r0.clone()
        self.per_token = per_token
        self.q, self.scale = quantized(rows, size, per_token)

    def reset(self):
        self.x.copy_(self.x0)
        self.r.copy_(self.r0)

    def run(self):
        import torch
        torch.ops._C.fused_add_rms_norm(self.x, self.r, self.w, EPS)
        quantize(self.q, self.x, self.scale, self.per_token)

    def outputs(self):
        return {"output": self.x, "residual": self.r, "quantized": self.q, "scale": self.scale}

    def exact(self):
        total = (self.x0.float() + self.r0.float()).to(self.x0.dtype).double()
        return total * (total.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self.w.double()

    def moved_bytes(self):
        return 9 * self.x.numel()


class Silu(Fp8):
    """silu_and_mul, fp8."""
    family, axis = "silu_and_mul", "num_tokens"

    def __init__(self, size, rows, dtype, per_token):
        import torch
        generator = torch.Generator(device="cuda").manual_seed(size + rows)
        self.x = (2 * torch.randn(rows, size, generator=generator, device="cuda")).to(dtype)
        self.y = torch.empty(rows, size // 2, dtype=dtype, device="cuda")
        self.per_token = per_token
        self.q, self.scale = quantized(rows, size // 2, per_token)

    def reset(self):
        pass

    def run(self):
        import torch
        torch.ops._C.silu_and_mul(self.y, self.x)
        quantize(self.q, self.y, self.scale, self.per_token)

    def outputs(self):
        return {"output": self.y, "quantized": self.q, "scale": self.scale}

    def exact(self):
        import torch
        a, b = self.x.double().chunk(2, dim=-1)
        return torch.nn.functional.silu(a).to(self.x.dtype).double() * b

    def moved_bytes(self):
        return 7 * self.y.numel()


class Heads:
    """Norms of the heads of query and key, their rotation, and the keys and values into a paged cache: four kernels."""
    sizes = ((16, 8), (32, 4), (32, 8), (40, 8), (64, 4), (64, 8), (16, 4), (20, 4), (16, 2), (8, 1))
    dtypes = ("bfloat16",)
    rows = (1, 8, 32, 256, 512)
    most_that_differ = 0
    eps = EPS
    HEAD, PAGE, PAGES, POSITIONS = 128, 16, 512, 40960
    bias = 0  # of the norms' weights
    memory = {}  # the caches, each an allocation of its own, as an engine's are
    has_float_angles = False
    is_paired = False  # key and value of a head lie together in the cache, as vLLM has them since 0.32 at the latest

    @classmethod
    def allocate(cls, dtype):
        import torch
        for heads in {heads for _, heads in cls.sizes}:
            shape = (cls.PAGE, heads, 2) if cls.is_paired else (2, cls.PAGE, heads)
            pages = cls.PAGES * max(1, 8 // heads)  # or PyTorch would put small ones into one allocation
            cls.memory[heads] = torch.zeros(pages, *shape, cls.HEAD, dtype=dtype, device="cuda")
        angle = torch.outer(torch.arange(cls.POSITIONS).float(), 1e6 ** -(torch.arange(cls.HEAD // 2) / (cls.HEAD // 2)))
        cls.memory["angles"] = torch.cat([angle.cos(), angle.sin()], -1).to(torch.float32 if cls.has_float_angles else dtype).cuda()

    def __init__(self, size, rows, dtype, _):
        import torch
        self.q_heads, self.kv_heads = size
        generator = torch.Generator(device="cuda").manual_seed(self.q_heads + self.kv_heads + rows)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.angles, self.cache = self.memory["angles"], self.memory[self.kv_heads]
        self.reset()
        self.qkv = normal(rows, (self.q_heads + 2 * self.kv_heads) * self.HEAD).to(dtype)
        self.weights = [(1 - self.bias + 0.2 * normal(self.HEAD)).to(dtype) for _ in range(2)]
        choose = lambda most: torch.randperm(most, generator=generator, device="cuda")[:rows]
        self.positions, self.slots = choose(self.POSITIONS), choose(self.PAGES * self.PAGE)
        self.slots[rows // 2 + 1:rows // 2 + 2] = -1  # a token without one
        self.scale = torch.ones((), device="cuda")

    def reset(self):
        self.cache.zero_()

    def heads(self):
        q, kv = self.q_heads * self.HEAD, self.kv_heads * self.HEAD
        return [part.view(len(self.qkv), -1, self.HEAD) for part in self.qkv.split([q, kv, kv], -1)]

    def run(self):
        import torch
        q, k, v = self.heads()
        self.make_outputs()
        torch.ops._C.rms_norm(self.q, q, self.weights[0], EPS)
        torch.ops._C.rms_norm(self.k, k, self.weights[1], EPS)
        rotate = torch.ops._C.rotary_embedding.default
        rotate(self.positions, self.q.flatten(1), self.k.flatten(1), self.HEAD, self.angles, True,
               *(0, False)[:len(rotate._schema.arguments) - 6])
        self.append(v)

    def make_outputs(self):
        import torch
        self.q, self.k = (torch.empty(x.shape, dtype=x.dtype, device="cuda") for x in self.heads()[:2])

    def append(self, v):
        import torch
        torch.ops._C_cache_ops.reshape_and_cache_flash(self.k, v, *self.cache.unbind(3 if self.is_paired else 1), self.slots, "auto",
                                                       self.scale, self.scale)

    def outputs(self):
        keys_and_values = (self.cache if self.is_paired else self.cache.transpose(1, 2)).flatten(0, 1)
        written = keys_and_values[self.slots[self.slots >= 0]]
        elsewhere = self.cache.count_nonzero() - written.count_nonzero()
        return {"output": self.q, "key": self.k, "written": written, "elsewhere": elsewhere[None]}

    def exact(self):
        return self.rotated(self.normed().to(self.q.dtype))

    def normed(self):
        x = self.heads()[0].double()
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * (self.weights[0].double() + self.bias)

    def rotated(self, heads):
        import torch
        cos, sin = self.angles[self.positions].double().unsqueeze(1).chunk(2, -1)
        a, b = heads.double().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def moved_bytes(self):
        return 4 * self.qkv.numel()

    @classmethod
    def suffix(cls):
        return "_fp16" if cls.dtypes == ("float16",) else ""

    @classmethod
    def definition(cls, q_heads, kv_heads):
        return f"qk_rmsnorm_rope_append_q{q_heads}_kv{kv_heads}_d{cls.HEAD}"


class Rotation(Heads):
    """The same without norms, as in vLLM's default mode: three kernels, of which Triton compiles two."""
    sizes = ((12, 2), (16, 2), (24, 8), (28, 4), (32, 8), (40, 8), (64, 8), (16, 4), (8, 2), (32, 4), (8, 1), (20, 4), (10, 2))
    memory = {}
    kernel = None

    @classmethod
    def definition(cls, q_heads, kv_heads):
        return f"rope_append{'_float' * cls.has_float_angles}_r{(q_heads + 2 * kv_heads) * cls.HEAD}_q{q_heads}_kv{kv_heads}_d{cls.HEAD}{cls.suffix()}"

    @classmethod
    def parts(cls):
        """Row, first element and heads of what a kernel rotates."""
        rows = {(q, kv): (q + 2 * kv) * cls.HEAD for q, kv in cls.sizes}
        return [part for (q, kv), row in rows.items() for part in ((row, 0, q), (row, q * cls.HEAD, kv))]

    @classmethod
    def rotate(cls, qkv, positions, angles, out, first):
        cls.kernel = cls.kernel or make_rotation()
        block = 512
        return cls.kernel[(-(-out.numel() // block),)](qkv, positions, angles, out, out.numel(), ROW=qkv.shape[1], FIRST=first,
                                                       HEADS=out.shape[1], HEAD=cls.HEAD, XBLOCK=block)

    def run(self):
        self.make_outputs()
        self.rotate(self.qkv, self.positions, self.angles, self.q, 0)
        self.rotate(self.qkv, self.positions, self.angles, self.k, self.q_heads * self.HEAD)
        self.append(self.heads()[2])

    def exact(self):
        return self.rotated(self.heads()[0])

    @classmethod
    def compile(cls, folder):
        """A cubin for each of the parts."""
        import torch
        angles, positions = torch.zeros(8, cls.HEAD, dtype=torch.bfloat16, device="cuda"), torch.zeros(2, dtype=torch.int64, device="cuda")
        for row, first, heads in cls.parts():
            qkv, out = (torch.zeros(2, *shape, dtype=torch.bfloat16, device="cuda") for shape in ((row,), (heads, cls.HEAD)))
            compiled = cls.rotate(qkv, positions, angles, out, first)
            label = "" if cls.HEAD == 128 else f"-d{cls.HEAD}"
            pathlib.Path(folder, f"r{row}-o{first}-n{heads}{label}.cubin").write_bytes(compiled.asm["cubin"])


class SmallRotation(Rotation):
    sizes = ((32, 8), (14, 2))
    memory = {}
    HEAD = 64


class Compiled(Heads):
    """With norms, by torch.compile's own kernels: sums of squares, norm and rotation of all heads."""
    sizes = ((16, 8), (32, 4), (32, 8), (40, 8), (64, 8), (16, 4), (20, 4), (16, 2), (8, 1))
    most_that_differ = 1e-3
    eps = 1e-6
    memory = {}
    version, form = "2.11.0", "_sums"
    chosen = {}  # file by kind and heads
    loaded = {}

    @classmethod
    def definition(cls, q_heads, kv_heads):
        return f"{'gemma_' * cls.bias}qk_rmsnorm_rope_once_append{cls.form}_r{(q_heads + 2 * kv_heads) * cls.HEAD}_q{q_heads}_kv{kv_heads}_d{cls.HEAD}{cls.suffix()}"

    @classmethod
    def key(cls, kind, q_heads, kv_heads):
        return f"{kind} {q_heads} {kv_heads} {cls.HEAD}{cls.suffix()}"

    @classmethod
    def configurations(cls, build):
        """What was compiled for these sizes, by kind and heads."""
        folders = list((build / "inductor").glob(f"{cls.version}-*"))
        if len(folders) != 1:
            sys.exit(f"{build}/inductor: {len(folders)} folders of PyTorch {cls.version}, not one (tests/engines/engines.py inductor)")
        folder, = folders
        found = {}
        for one in json.loads((folder / "index.json").read_text()):
            sizes = one["sizes"]
            if one["kind"].startswith(("qk_", "rope_", "add_bias")) and sizes.get("positions", cls.POSITIONS) == cls.POSITIONS and sizes["head"] == cls.HEAD \
                    and one["type"] == ("fp16" if cls.suffix() else "bf16"):
                found.setdefault(cls.key(one["kind"], sizes["q_heads"], sizes["kv_heads"]), []).append({**one, "file": str(folder / one["file"])})
        return found

    @classmethod
    def choose(cls, build):
        """The fastest of each, with many tokens, as Inductor tries them."""
        import torch
        from graph_time import graph_us
        dtype = getattr(torch, cls.dtypes[0])
        cls.allocate(dtype)
        configurations, chosen = cls.configurations(build), {}
        for size in cls.sizes:
            case = cls(size, 4096, dtype, False)
            case.make_outputs()
            for kind in case.launches():
                key = cls.key(kind, *size)
                chosen[key] = min(configurations[key], key=lambda one: graph_us(lambda: case.launch(kind, one), case.moved_bytes()))
        return chosen

    def make_outputs(self):
        import torch
        super().make_outputs()
        self.sums = [torch.empty(x.shape[:2], device="cuda") for x in (self.q, self.k)]

    def launches(self):
        """By kind, in order: the arguments, and what the grid covers of each of the kernel's parts."""
        rows = [self.sums[0].numel(), self.sums[1].numel()]
        pairs = [self.HEAD // 2 * count for count in rows]
        halves = [[x, x.flatten()[self.HEAD // 2:]] for x in (self.q, self.k)]
        return {"qk_sums": ([self.qkv, *self.sums, *rows], rows),
                "qk_rope_both": ([self.qkv, self.sums[1], self.weights[1], self.positions, self.angles, self.sums[0], self.weights[0], *halves[1],
                                  *halves[0], *pairs[::-1]], pairs)}

    def launch(self, kind, one):
        from inductor import Original
        if one["file"] not in self.loaded:
            self.loaded[one["file"]] = Original(pathlib.Path(), one)
        originals, elements = self.launches()[kind]
        self.loaded[one["file"]].launch(SimpleNamespace(originals=originals, elements=elements))

    def run(self):
        self.make_outputs()
        for kind in self.launches():
            self.launch(kind, self.chosen[self.key(kind, self.q_heads, self.kv_heads)])
        self.append(self.heads()[2])

    def outputs(self):
        import torch
        return super().outputs() | ({"sums": torch.cat(self.sums, -1).bfloat16()} if self.form else {})

    def exact(self):
        return self.rotated(self.normed())


class CompiledApart(Compiled):
    """Of many heads in large batches."""
    sizes = ((64, 8),)
    memory = {}

    def launches(self):
        rows = [self.sums[0].numel(), self.sums[1].numel()]
        part = lambda index, x: ([self.qkv, self.sums[index], self.weights[index], self.positions, self.angles, x, x.flatten()[self.HEAD // 2:],
                                  x.numel() // 2], [x.numel() // 2])
        return {"qk_sums": ([self.qkv, *self.sums, *rows], rows), "qk_rope_query": part(0, self.q), "qk_rope_key": part(1, self.k)}


class CompiledWhole(Compiled):
    """With PyTorch 2.14: without sums in memory."""
    memory = {}
    version, form = "2.14.0", ""
    is_paired = True

    def launches(self):
        part = lambda index, x: ([self.qkv, self.weights[index], self.positions, self.angles, x, x.numel() // self.HEAD, self.HEAD],
                                 [x.numel() // self.HEAD])
        return {"qk_norm_rope_query": part(0, self.q), "qk_norm_rope_key": part(1, self.k)}


class CompiledGemma(CompiledWhole):
    sizes = ((8, 4), (16, 8))
    memory = {}
    HEAD, POSITIONS, bias = 256, 131072, 1


class CompiledGemma128(CompiledGemma):
    sizes = ((32, 16),)
    memory = {}
    HEAD = 128


class CompiledGemmaSums(Compiled):
    """With PyTorch 2.11."""
    sizes = ((8, 4), (16, 8))
    memory = {}
    HEAD, POSITIONS, bias = 256, 131072, 1


class CompiledGemmaSums128(CompiledGemmaSums):
    sizes = ((32, 16),)
    memory = {}
    HEAD = 128


class CompiledOnce(CompiledWhole):
    """With PyTorch 2.13: in one kernel."""
    memory = {}
    version = "2.13.0"

    def launches(self):
        rows = [x.numel() // self.HEAD for x in (self.q, self.k)]
        return {"qk_norm_rope_both": ([self.qkv, self.weights[0], self.positions, self.angles, self.weights[1], self.q, self.k, *rows], rows)}


class CompiledRotation(Rotation, CompiledWhole):
    """Without norms."""
    sizes = ((32, 8), (64, 8))
    memory = {}
    POSITIONS = 131072
    run = CompiledWhole.run

    def launches(self):
        part = lambda x: ([self.qkv, self.positions, self.angles, x, x.numel()], [x.numel()])
        return {"rope_query": part(self.q), "rope_key": part(self.k)}


class FloatRotation(CompiledRotation):
    """Of gpt-oss, the key before the query."""
    sizes = ((64, 8),)
    memory = {}
    HEAD, has_float_angles = 64, True
    most_that_differ = 0

    def launches(self):
        of_query, of_key = super().launches().values()
        return {"rope_key_float": of_key, "rope_query_float": of_query}


class BiasedRotation(CompiledRotation):
    """Of rows that lack the bias, which are written with it."""
    sizes = ((12, 2), (16, 2), (28, 4), (40, 8), (64, 8))
    memory = {}
    POSITIONS = 32768
    given = None

    def __init__(self, size, rows, dtype, per_token):
        import torch
        super().__init__(size, rows, dtype, per_token)
        generator = torch.Generator(device="cuda").manual_seed(rows)
        self.added, self.given = torch.randn(self.qkv.shape[1], generator=generator, device="cuda").to(dtype), self.qkv.clone()

    @classmethod
    def definition(cls, q_heads, kv_heads):
        return "bias_" + super().definition(q_heads, kv_heads)

    def reset(self):
        super().reset()
        if self.given is not None:
            self.qkv.copy_(self.given)

    def launches(self):
        rotation = [self.positions, self.angles]
        return {"rope_key_bias": ([self.qkv, self.added, *rotation, self.k, self.k.numel()], [self.k.numel()]),
                "add_bias": ([self.qkv, self.added, self.qkv.numel()], [self.qkv.numel()]),
                "rope_query_biased": ([self.qkv, *rotation, self.q, self.q.numel()], [self.q.numel()])}

    def outputs(self):
        return super().outputs() | {"rows": self.qkv}

    def exact(self):
        q = (self.given.double() + self.added.double())[:, :self.q_heads * self.HEAD]
        return self.rotated(q.to(self.given.dtype).view(len(q), -1, self.HEAD))


class SmallBiasedRotation(BiasedRotation):
    sizes = ((14, 2),)
    memory = {}
    HEAD = 64


def in_fp16(kind, **changed):
    """With caches of its own."""
    return type(f"{kind.__name__}InFp16", (kind,), {"memory": {}, "dtypes": ("float16",), **changed})


def make_rotation():
    import triton
    import triton.language as tl

    @triton.jit
    def triton_poi_fused_1(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, ROW: tl.constexpr, FIRST: tl.constexpr,
                           HEADS: tl.constexpr, HEAD: tl.constexpr, XBLOCK: tl.constexpr):
        xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
        xmask = xindex < xnumel
        x0 = xindex % HEAD
        x1 = xindex // HEAD % HEADS
        x2 = xindex // (HEAD * HEADS)
        head = in_ptr0 + FIRST + HEAD * x1 + ROW * x2
        angle = in_ptr2 + x0 % (HEAD // 2) + HEAD * tl.load(in_ptr1 + x2, xmask)
        own = tl.load(head + x0, xmask).to(tl.float32)
        other = tl.load(head + (x0 + HEAD // 2) % HEAD, xmask).to(tl.float32)
        cos = tl.load(angle, xmask).to(tl.float32)
        sin = tl.load(angle + HEAD // 2, xmask).to(tl.float32)
        rotated = tl.where(x0 < HEAD // 2, own * cos - other * sin, own * cos + other * sin)
        tl.store(out_ptr0 + xindex, rotated.to(tl.bfloat16), xmask)

    return triton_poi_fused_1


def quantized(rows, width, per_token):
    import torch
    scale = torch.zeros(rows, 1, device="cuda") if per_token else torch.full((1,), 0.013, device="cuda")
    return torch.zeros(rows, width, dtype=torch.float8_e4m3fn, device="cuda"), scale


def quantize(q, x, scale, per_token):
    import torch
    if per_token:
        torch.ops._C.dynamic_per_token_scaled_fp8_quant(q, x, scale, None)
    else:
        torch.ops._C.static_scaled_fp8_quant(q, x, scale, None)


SIZES_IN_FP16 = ((32, 8), (40, 8), (64, 8))  # of models with weights in 4 bits
WHAT = {"norm": (Norm, False), "norm-per-token": (Norm, True), "silu": (Silu, False), "silu-per-token": (Silu, True),
        "qk": (Heads, False), "rope": (Rotation, False), "rope-64": (SmallRotation, False), "qk-compiled": (Compiled, False),
        "qk-apart": (CompiledApart, False), "qk-once": (CompiledOnce, False), "qk-whole": (CompiledWhole, False),
        "qk-gemma": (CompiledGemma, False), "qk-gemma-128": (CompiledGemma128, False),
        "qk-gemma-sums": (CompiledGemmaSums, False), "qk-gemma-sums-128": (CompiledGemmaSums128, False),
        "rope-compiled": (CompiledRotation, False), "rope-float": (FloatRotation, False),
        "rope-bias": (BiasedRotation, False), "rope-bias-64": (SmallBiasedRotation, False),
        "qk-compiled-fp16": (in_fp16(Compiled, sizes=SIZES_IN_FP16), False), "qk-apart-fp16": (in_fp16(CompiledApart), False),
        "qk-once-fp16": (in_fp16(CompiledOnce, sizes=SIZES_IN_FP16), False), "qk-whole-fp16": (in_fp16(CompiledWhole, sizes=SIZES_IN_FP16), False),
        "rope-compiled-fp16": (in_fp16(CompiledRotation), False), "rope-bias-fp16": (in_fp16(BiasedRotation), False),
        "rope-bias-64-fp16": (in_fp16(SmallBiasedRotation), False)}


def sizes_of(kind, kept):
    """Of fp8 those that the folder has, each of which has both forms and types."""
    if issubclass(kind, Heads):
        return kind.sizes
    found = (re.fullmatch(f"{kind.family}_then_quant_h([0-9]+)", name) for name in kept.axes)
    return sorted(int(fit[1]) for fit in found if fit)


def described(what, size, rows, dtype):
    """The definition, and the values of its variable axes."""
    kind, per_token = WHAT[what]
    if issubclass(kind, Heads):
        return kind.definition(*size), {"num_tokens": rows, "max_seq_len": kind.POSITIONS, "num_pages": kind.PAGES, "page_size": kind.PAGE}
    return f"{kind.family}_then_quant{'_per_token' * per_token}_h{size}{'_fp16' * (dtype == 'float16')}", {kind.axis: rows}


def child(args):
    import torch
    from graph_time import graph_us
    Compiled.chosen = json.loads(os.environ.get("CHOSEN", "{}"))
    torch.ops.load_library(str(args.kernels))
    if not hasattr(torch.ops._C_cache_ops, "reshape_and_cache_flash"):
        torch.ops.load_library(str(args.kernels.with_name("_C.abi3.so")))
    for kind in {WHAT[what][0] for what in args.what}:
        if issubclass(kind, Heads):
            kind.allocate(getattr(torch, kind.dtypes[0]))  # before others, between which there would be room
    out = {}
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    kept = KeptTimes(args.build / "config/vllm")
    for what in args.what:
        kind, per_token = WHAT[what]
        for size, dtype in itertools.product(sizes_of(kind, kept), kind.dtypes):
            for rows in kind.rows:
                case = kind(size, rows, getattr(torch, dtype), per_token)
                case.run()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    case.run()
                case.reset()
                graph.replay()
                torch.cuda.synchronize()
                error = (case.outputs()["output"].double() - case.exact()).abs()
                digest = {name: (tensor.contiguous().view(torch.uint8).cpu() if rows <= 512 else None)
                          for name, tensor in case.outputs().items()}
                out[f"{what} {size} {rows}{' fp16' * (dtype == 'float16')}"] = {
                    "bytes": digest, "error": error.mean().item(), "described": described(what, size, rows, dtype),
                    "us": graph_us(case.run, case.moved_bytes())}
                del graph
    torch.save(out, args.child)


def tell_codes(args, folders):
    """The patterns of these folders know the kernels compiled here in place of torch.compile's."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, __file__, str(args.build), str(args.kernels), "--compile", work], check=True)
        codes = {}
        for cubin in pathlib.Path(work).glob("*.cubin"):
            told = subprocess.run([args.build / "bin/fibshim", "inspect", "--json", cubin], check=True, stdout=subprocess.PIPE).stdout
            codes[cubin.stem] = [json.loads(told)["files"][0]["code"]]
    for folder in folders:
        paths = list(pathlib.Path(folder, "patterns").glob("*.json"))
        patterns = {path: json.loads(path.read_text()) for path in paths}
        images = {json.dumps(pattern["match"]["image"]): pattern["match"]["image"] + codes[path.stem.removeprefix("vllm-inductor-rope-")]
                  for path, pattern in patterns.items() if path.stem.removeprefix("vllm-inductor-rope-") in codes}
        for path, pattern in patterns.items():
            matches = pattern["match"] if isinstance(pattern["match"], list) else [pattern["match"]]
            for match in matches:
                if "image" in match:
                    match["image"] = images.get(json.dumps(match["image"]), match["image"])
            path.write_text(json.dumps(pattern))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--heads", help="only these: Q,KV Q,KV...")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    parser.add_argument("--choose", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    args.what = args.what or [what for what, (kind, _) in WHAT.items() if not issubclass(kind, Compiled) or (args.build / "inductor").exists()]
    if args.heads:
        wanted = {tuple(map(int, pair.split(","))) for pair in args.heads.split()}
        for kind in {kind for kind, _ in WHAT.values() if issubclass(kind, Heads)}:
            kind.sizes = tuple(size for size in kind.sizes if size in wanted)
    compiled = [WHAT[what][0] for what in args.what if issubclass(WHAT[what][0], Compiled)]
    if args.compile:
        Rotation.compile(args.compile)
        return SmallRotation.compile(args.compile)
    if args.choose:
        chosen = {key: one for kind in compiled for key, one in kind.choose(args.build).items()}
        pathlib.Path(args.choose).write_text(json.dumps(chosen))
        return None
    if args.child:
        return child(args)
    build = args.build.resolve()
    with tempfile.TemporaryDirectory() as folder:
        single, whole = os.path.join(folder, "single/vllm"), os.path.join(folder, "whole/vllm")
        for copy in (single, whole):
            shutil.copytree(build / "config/vllm", copy)
        if {"rope", "rope-64"} & set(args.what):
            tell_codes(args, (single, whole))
        for pattern in pathlib.Path(single, "patterns").glob("*.json"):
            if isinstance(json.loads(pattern.read_text())["match"], list):
                pattern.unlink()
        # What no other pattern supplies is an argument of nothing then.
        for kind in ("rope_append", "once_append", "splitk_reduce"):
            for solution in pathlib.Path(single, "solutions").glob(f"**/*{kind}*.json"):
                solution.unlink()
        shim = {"LD_PRELOAD": str(build / "lib/libfibshim.so")}
        command = [sys.executable, __file__, str(args.build), str(args.kernels), *args.what, *(["--heads", args.heads] if args.heads else [])]
        if compiled:
            chosen = pathlib.Path(folder, "chosen")
            subprocess.run([*command, "--choose", chosen], check=True)
            os.environ["CHOSEN"] = chosen.read_text()
        alone, _ = run_side(command, {})
        singly, counted_singly = run_side(command, {**shim, "FIBSHIM_CONFIG": single})
        as_one, counted = run_side(command, {**shim, "FIBSHIM_CONFIG": whole})
    print("counted", counted_singly, counted)
    report = Report("vllm_rewrites")
    with report.phase("all are rewritten") as problems:
        outcomes = by_outcome(counted)
        if not outcomes.get("absorbed") or "fallback_graph" in outcomes:
            problems.append(f"counted {counted}")
    table, kept = {}, KeptTimes(build / "config/vllm")
    for key, mine in as_one.items():
        his = alone[key]
        definition, axes = mine["described"]
        if kept.solution_for(definition, **axes) is None:  # all three sides are vLLM's
            continue
        kept.add(definition, "vLLM", mine["us"], his["us"], **axes)
        table[key] = compare_sides(report, key, mine, his, {"singly": singly[key]["us"]}, WHAT[key.split()[0]][0].most_that_differ, 0.01)
    return finish(report, args, kept, table)


sys.exit(main())
