#!/usr/bin/env python3
"""Times of the operations of PyTorch, FlashInfer and published wheels, without and with the folder for them, in replayed graphs.

  tests/gpu/op_times.py BUILD pytorch [--only DEFINITION,...] [--keep FILE] [--out FILE]
  tests/gpu/op_times.py BUILD vllm|sglang|flashinfer --kernels PATH [--only DEFINITION,...] [--keep FILE] [--out FILE]
  tests/gpu/op_times.py BUILD flashinfer [--heads N] [--only DEFINITION,...] [--keep FILE] [--out FILE]

PATH: _C_stable_libtorch.abi3.so of vLLM's wheel, sgl_kernel/sm90/common_ops.abi3.so of sglang-kernel's, or the folder that FlashInfer's
just-in-time compiler keeps its libraries in (cached_ops, with norm/norm.so and others), for which apache-tvm-ffi must be installed. Without
PATH it is FlashInfer as installed, whose norms CuTe-DSL compiles while they are called; with --heads those of the heads of query and key, so many a token.
Each side is a process. Every definition that an operation here is for must be replaced, and where a solution's "when" holds it may not be slower
than what it replaces. What they compute is for kernels.py to say.
"""
import argparse
import json
import pathlib
import re
import sys
from types import SimpleNamespace

from expressions import evaluate
from kept_times import NOISE, KeptTimes, finish
from report import Report
from sides import run_side

ROWS = (1, 8, 32, 64, 128, 256, 384, 512, 768, 1024, 2048, 4096, 16384)
MOST_BYTES = 2 << 30
EPS = 1e-6
PLACES = 3  # of the tensors: where they lie decides what L2 keeps of those that it could just hold
DTYPES = {None: "bfloat16", "fp16": "float16", "fp32": "float32"}
QUERY_HEADS, KV_HEADS, POSITIONS = 32, 8, 32768
PAGES, PAGE_SIZE = 2048, 16
NAME = re.compile(r"(?P<family>\w+?)_(?:kv(?P<heads>\d+)_)?[hvd](?P<size>\d+)(?P<pos64>_pos64)?(?P<cache16>_cache16)?(?:_(?P<type>fp16|fp32))?")


def on_rows(make):
    """Of an operation on rows of a case's size: make(x) returns its call, and how many bytes it moves."""
    def operation(case, rows):
        import torch
        return make(torch.randn(rows, case.size, device="cuda").to(case.dtype))
    return operation


def norms(ops):
    """By family, those of FlashInfer, also as sgl-kernel has them: with dependent launch, as both ask for it on Hopper."""
    import torch

    def norm(function):
        def make(x):
            y, weight = torch.empty_like(x), torch.ones_like(x[0])
            return lambda: function(y, x, weight, EPS, True), 2 * x.nbytes
        return on_rows(make)

    def fused(function):
        def make(x):
            residual, weight = torch.zeros_like(x), torch.ones_like(x[0])
            return lambda: function(x, residual, weight, EPS, True), 4 * x.nbytes
        return on_rows(make)

    return {"rmsnorm": norm(ops.rmsnorm), "fused_add_rmsnorm": fused(ops.fused_add_rmsnorm),
            "gemma_rmsnorm": norm(ops.gemma_rmsnorm), "gemma_fused_add_rmsnorm": fused(ops.gemma_fused_add_rmsnorm)}


def activation(function, *more):
    import torch

    def make(x):
        y = torch.empty_like(x[:, ::2]).contiguous()
        return lambda: function(y, x, *more), 3 * y.nbytes
    return on_rows(make)


def rotation(rotate):
    """rotate(positions, query, key, size of a head, cos/sin cache), in place."""
    def operation(case, rows):
        import torch
        normal = lambda *shape: torch.randn(*shape, device="cuda")
        query, key = (normal(rows, heads * case.size).to(case.dtype) for heads in (QUERY_HEADS, KV_HEADS))
        cache = normal(POSITIONS, case.size).to(case.dtype if case.cache16 else torch.float32)
        positions = torch.randint(POSITIONS, (rows,), device="cuda", dtype=torch.int64 if case.pos64 else torch.int32)
        return lambda: rotate(positions, query, key, case.size, cache), 2 * (query.nbytes + key.nbytes)
    return operation


def pytorch_operations(_):
    import torch.nn.functional as F
    from torch import ones_like

    def norm(call):
        return on_rows(lambda x: (lambda: call(x, ones_like(x[0])), 2 * x.nbytes))

    return {"rmsnorm": norm(lambda x, w: F.rms_norm(x, w.shape, w, EPS)),
            "layernorm": norm(lambda x, w: F.layer_norm(x, w.shape, w, w, 1e-5)),
            "softmax": on_rows(lambda x: (lambda: F.softmax(x, -1), 2 * x.nbytes))}


def vllm_operations(kernels):
    import torch
    torch.ops.load_library(str(kernels))
    ops, scale = torch.ops._C, torch.full((1,), 0.013, device="cuda")

    def norm(has_weight, has_residual, is_quantized):
        def make(x):
            weight = torch.ones_like(x[0]) if has_weight else None
            y = torch.empty_like(x, dtype=torch.float8_e4m3fn if is_quantized else x.dtype)
            residual, moved = torch.zeros_like(x), (4 if has_residual else 2) * x.nbytes
            if is_quantized and has_residual:
                return lambda: ops.fused_add_rms_norm_static_fp8_quant(y, x, residual, weight, scale, EPS), moved
            if is_quantized:
                return lambda: ops.rms_norm_static_fp8_quant(y, x, weight, scale, EPS), moved
            if has_residual:
                return lambda: ops.fused_add_rms_norm(x, residual, weight, EPS), moved
            return lambda: ops.rms_norm(y, x, weight, EPS), moved
        return on_rows(make)

    def append(case, rows):
        cache = torch.zeros(PAGES, 2, PAGE_SIZE, case.heads, case.size, dtype=case.dtype, device="cuda")
        key, value = (torch.randn(rows, case.heads, case.size, device="cuda").to(case.dtype) for _ in range(2))
        slots, one = torch.randperm(PAGES * PAGE_SIZE, device="cuda")[:rows], torch.ones((), device="cuda")
        return lambda: torch.ops._C_cache_ops.reshape_and_cache_flash(key, value, *cache.unbind(1), slots, "auto", one, one), 4 * key.nbytes

    return {"rmsnorm": norm(True, False, False), "rmsnorm_no_weight": norm(False, False, False), "fused_add_rmsnorm": norm(True, True, False),
            "fused_add_rmsnorm_no_weight": norm(False, True, False), "rmsnorm_quant": norm(True, False, True),
            "fused_add_rmsnorm_quant": norm(True, True, True), "silu_and_mul_clamp": activation(ops.silu_and_mul_with_clamp, 7.0),
            "rope_cos_sin_cache": rotation(lambda *given: ops.rotary_embedding(*given, True)), "append_paged_kv_cache_slots": append,
            **{name: activation(getattr(ops, name)) for name in ("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul")}}


ACTIVATIONS = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")


def sglang_operations(kernels):
    import torch
    torch.ops.load_library(str(kernels))
    ops = torch.ops.sgl_kernel
    return {**norms(ops), "rope_cos_sin_cache": rotation(lambda *given: ops.rotary_embedding(*given, True)),
            **{name: activation(getattr(ops, name)) for name in ACTIVATIONS}}


def quantized_norms(ops):
    """By family, those of FlashInfer."""
    import torch
    scale = torch.full((1,), 0.013, device="cuda")

    def quantized(function, has_residual):
        def make(x):
            y, weight, residual = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.ones_like(x[0]), torch.zeros_like(x)
            given = (y, x, residual, weight, scale, EPS, True) if has_residual else (y, x, weight, scale, EPS, True)
            return lambda: function(*given), (4 if has_residual else 2) * x.nbytes
        return on_rows(make)

    return {"rmsnorm_quant": quantized(ops.rmsnorm_quant, False), "fused_add_rmsnorm_quant": quantized(ops.fused_add_rmsnorm_quant, True)}


def flashinfer_operations(libraries):
    """Its norms are those in C++."""
    import tvm_ffi
    load = lambda name: tvm_ffi.load_module(str(libraries / name / f"{name}.so"))
    ops, rope = load("norm"), load("rope")

    def rotate(positions, query, key, size, cache):
        query, key = (x.view(len(x), -1, size) for x in (query, key))
        rope.apply_rope_pos_ids_cos_sin_cache(query, key, query, key, cache, positions, False)

    return {**norms(ops), **quantized_norms(ops), "rope_cos_sin_cache": rotation(rotate),
            **{name: activation(getattr(load(name), name), True) for name in ACTIVATIONS}}


def cute_head_operations(heads):
    """Rows are the heads of tokens."""
    import torch
    from flashinfer import norm

    def of_heads(function):
        def make(x):
            x = x.view(-1, heads, x.shape[-1])
            y, weight = torch.empty_like(x), torch.ones_like(x[0, 0])
            return lambda: function(x, weight, EPS, out=y, enable_pdl=True), 2 * x.nbytes
        return on_rows(make)

    return {"rmsnorm": of_heads(norm.rmsnorm), "gemma_rmsnorm": of_heads(norm.gemma_rmsnorm)}


def cute_operations(_):
    from flashinfer import norm
    into = lambda function: lambda y, x, weight, eps, pdl: function(x, weight, eps, out=y, enable_pdl=pdl)
    given_out = {name: into(getattr(norm, name)) for name in ("rmsnorm", "gemma_rmsnorm")}
    ops = SimpleNamespace(**{**vars(norm), **given_out})
    return {**norms(ops), **quantized_norms(ops)}


NORMS = ("rmsnorm", "fused_add_rmsnorm", "gemma_rmsnorm", "gemma_fused_add_rmsnorm")
QUANTIZED_NORMS = ("rmsnorm_quant", "fused_add_rmsnorm_quant")
# By folder: the engine, what makes its operations, and the families of definitions that they are for.
FOLDERS = {"pytorch": ("PyTorch", pytorch_operations, ("rmsnorm", "layernorm", "softmax")),
           "vllm": ("vLLM", vllm_operations, (
               "rmsnorm", "rmsnorm_no_weight", "fused_add_rmsnorm", "fused_add_rmsnorm_no_weight", "rmsnorm_quant", "fused_add_rmsnorm_quant",
               *ACTIVATIONS, "mul_and_silu", "silu_and_mul_clamp", "rope_cos_sin_cache", "append_paged_kv_cache_slots")),
           "sglang": ("sgl-kernel", sglang_operations, (*NORMS, *ACTIVATIONS, "rope_cos_sin_cache")),
           "flashinfer": ("FlashInfer", flashinfer_operations, (*NORMS, *QUANTIZED_NORMS, *ACTIVATIONS, "rope_cos_sin_cache"))}
CUTE = ("FlashInfer, CuTe-DSL", cute_operations, (*NORMS, *QUANTIZED_NORMS))
CUTE_HEADS = ("FlashInfer, CuTe-DSL, heads", cute_head_operations, ("rmsnorm", "gemma_rmsnorm"))
HEAD_SIZES = (64, 128, 256, 512)


def cases(kept, families, only):
    """The definitions of these families, by what their names say; those in `only`, if there is any."""
    for name, axes in sorted(kept.axes.items()):
        fit = NAME.fullmatch(name)
        if fit and fit["family"] in families and (not only or name in only):
            yield SimpleNamespace(name=name, variable=[axis for axis, kind in axes.items() if kind["type"] == "var"], family=fit["family"],
                                  size=int(fit["size"]), heads=int(fit["heads"] or QUERY_HEADS + KV_HEADS), type=fit["type"], pos64=fit["pos64"],
                                  cache16=fit["cache16"])


def axes_of(case, rows):
    """The values of a definition's variable axes; that of the rows has no name of its own."""
    values = {"num_q_heads_x_head_size": QUERY_HEADS * case.size, "num_k_heads_x_head_size": KV_HEADS * case.size, "max_seq_len": POSITIONS,
              "num_pages": PAGES, "page_size": PAGE_SIZE}
    return {axis: values.get(axis, rows) for axis in case.variable}


def cases_of(args, kept, families):
    return (case for case in cases(kept, families, args.only) if not args.heads or case.size in HEAD_SIZES)


def rows_of(args):
    return [rows for rows in ROWS if not args.heads or rows % args.heads == 0]


def engine_of(args):
    if args.heads:
        return CUTE_HEADS
    return CUTE if args.folder == "flashinfer" and not args.kernels else FOLDERS[args.folder]


def clauses_of_cute(folder, heads):
    """By definition, the clauses on sizes in the "where" of the patterns of CuTe-DSL's norms. Sizes that these leave to CuTe-DSL are not judged here."""
    clauses = {}
    for path in (folder / "patterns").glob(f"flashinfer-cute-*{'qk-rmsnorm' if heads else '-dense'}-*.json"):
        pattern = json.loads(path.read_text())
        clauses[pattern["definition"]] = [clause for clause in pattern["where"] if set(re.findall(r"[a-z_]+", clause)) <= {"hidden_size", "batch_size"}]
    return clauses


def child(args, kept):
    import torch
    from graph_time import graph_us
    _, make, families = engine_of(args)
    operations = make(args.heads or args.kernels)
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    out = {}
    for case in cases_of(args, kept, families):
        case.dtype = getattr(torch, DTYPES[case.type])
        elements = case.size * (case.heads if len(case.variable) > 1 else 1)
        for rows in rows_of(args):
            if rows * elements * torch.empty(0, dtype=case.dtype).element_size() > MOST_BYTES:
                continue
            calls = [operations[case.family](case, rows) for _ in range(PLACES)]
            try:
                calls[0][0]()
            except RuntimeError as error:
                out[case.name] = str(error).splitlines()[0]
                break
            out[case.name, rows] = min(graph_us(*call) for call in calls)
    torch.save(out, args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", choices=FOLDERS)
    parser.add_argument("--kernels", type=pathlib.Path)
    parser.add_argument("--heads", type=int, metavar="N")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="DEFINITION,...")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/FOLDER`")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder in ("vllm", "sglang") and not args.kernels:
        parser.error(f"{args.folder} needs --kernels")
    if args.heads and (args.folder != "flashinfer" or args.kernels):
        parser.error("--heads is for FlashInfer as installed")
    folder = args.build.resolve() / "config" / args.folder
    kept, report = KeptTimes(folder), Report(f"op_times {args.folder}")
    if args.child:
        return child(args, kept)
    command = [sys.executable, __file__, *sys.argv[1:]]
    alone, _ = run_side(command, {})
    ours, counted = run_side(command, {"LD_PRELOAD": str(folder.parent.parent / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(folder)})
    engine, _, families = engine_of(args)
    clauses = clauses_of_cute(folder, args.heads) if engine in (CUTE[0], CUTE_HEADS[0]) else {}
    for case in cases_of(args, kept, families):
        asked = clauses.get(case.name.replace(f"h{case.size}", "h{hidden_size}"), [])
        rows_taken = [rows for rows in rows_of(args) if all(evaluate(clause, {"hidden_size": case.size, "batch_size": rows}) for clause in asked)]
        if not rows_taken:
            report.skip(case.name, f"the pattern leaves it to {engine}")
            continue
        if case.name in alone:
            report.skip(case.name, f"{engine} does not take it: {alone[case.name]}")
            continue
        with report.phase(f"{case.name}: replaced, and not slower") as problems:
            if case.name in ours:
                problems.append(ours[case.name])
            if not counted[case.name, "hit"]:
                of_case = {outcome: n for (name, outcome), n in counted.items() if name == case.name}
                problems.append(f"is not replaced: {of_case or 'no launch is known for it'}")
                continue
            for rows in rows_taken:
                axes = axes_of(case, rows)
                if (case.name, rows) in ours and kept.solution_for(case.name, **axes):
                    us, his = ours[case.name, rows], alone[case.name, rows]
                    kept.add(case.name, engine, us, his, **axes)
                    if us > NOISE * his:
                        problems.append(f"{rows} rows: {us:.2f} us, {engine}'s {his:.2f}")
    return finish(report, args, kept, [[*key, us, alone[key]] for key, us in ours.items() if isinstance(key, tuple)])


if __name__ == "__main__":
    sys.exit(main())
