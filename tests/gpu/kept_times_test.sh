#!/usr/bin/env bash
# Times that tests on a GPU keep: by names of definitions that exist, with all their axes, and taken in by `fibshim bench --keep-from`.
# Needs no GPU.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
here=$(realpath "$(dirname "$0")")
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here python3 - "$build" "$here" <<'END'
import contextlib
import io
import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
from kept_times import KeptTimes

build, here = map(pathlib.Path, sys.argv[1:])
problems = []


def names_of(script):
    """What a script defines, which is not run. It asks for PyTorch, which need not be there."""
    for name in ("torch", "torch.nn", "torch.nn.functional", "solutions", "graph_time"):
        stub = sys.modules[name] = types.ModuleType(name)
        stub.__getattr__ = lambda _: object
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, stub)
    space, sys.argv = {"__name__": script, "__file__": str(here / script)}, [script, "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        exec(compile((here / script).read_text(), script, "exec"), space)
    return types.SimpleNamespace(**space)


def sizes_of(kept):
    return {key: sorted(of_size) for key, of_size in kept.times.items()}


def check_all(what, kept, prefix):
    """Each solution of these definitions has a time."""
    timed = {solution for _, solution, _ in kept.times}
    missed = {one["name"] for definition, of in kept.solutions.items() if definition.startswith(prefix) for one in of} - timed
    if missed:
        problems.append(f"{what}: no times of {sorted(missed)}")


of_vllm = KeptTimes(build / "config/vllm")
routing = names_of("moe_routing.py")
for model, block_size, tokens, dtype in itertools.product(routing.MODELS, routing.BLOCK_SIZES, (1, 64, 65), ("bfloat16", "float32")):
    routing.keep(of_vllm, (model, block_size, tokens, dtype, "normal", True), 2.0, 3.0)
if len(of_vllm.times) != 24 or any(dict(axes)["num_tokens"] > 64 for of_size in of_vllm.times.values() for axes in of_size):
    problems.append(f"routing: {sizes_of(of_vllm)}")
products = names_of("expert_products.py")
for engine, folder, parts, blocks, count in ((products.Vllm, "vllm", products.PARTS, (16,), 6), (products.Vllm, "vllm", products.Vllm.fp8_parts, (16,), 8),
                                             (products.Sglang, "sglang", products.PARTS, (16,), 3),
                                             (products.Sglang, "sglang", products.Sglang.fp8_parts, (16, 64), 8)):
    kept = KeptTimes(build / "config" / folder)
    for name, block, tokens in itertools.product(parts.values(), blocks, (1, 2, 5, 64, 65)):
        if call := products.call_of(kept, engine, name, block, tokens):
            kept.add(call[0], "Triton", 2.0, 3.0, **call[1])
    if len(kept.times) != count or any(dict(axes)["num_choices"] > 512 for of_size in kept.times.values() for axes in of_size):
        problems.append(f"products of experts, {folder}: {sizes_of(kept)}")
rewrites = names_of("vllm_rewrites.py")
for what, (kind, _) in rewrites.WHAT.items():
    for size, dtype in itertools.product(rewrites.sizes_of(kind, of_vllm), kind.dtypes):
        definition, axes = rewrites.described(what, size, 8, dtype)
        of_vllm.add(definition, "vLLM", 1.0, 2.0, **axes)
operations = names_of("op_times.py")
for folder, (_, _, families) in operations.FOLDERS.items():
    kept, found = KeptTimes(build / "config" / folder), set()
    for case in operations.cases(kept, families, []):
        found.add(case.family)
        if not any(kept.solution_for(case.name, **operations.axes_of(case, rows)) for rows in operations.ROWS):
            problems.append(f"{folder}: of no size that is timed is there a solution of {case.name}")
    if found != set(families):
        problems.append(f"{folder}: operations without definitions: {set(families) - found}")
# What the patterns of CuTe-DSL's norms leave to it: by definition, rows that they take and rows that they do not.
of_cute = operations.clauses_of_cute(build / "config/flashinfer", None)
for definition, size, taken, left in (("rmsnorm_h{hidden_size}", 4096, (1, 512, 2048), (1024,)), ("rmsnorm_h{hidden_size}", 128, (4096,), (1, 2048)),
                                      ("gemma_rmsnorm_h{hidden_size}_fp16", 7168, (64,), (128,)),
                                      ("fused_add_rmsnorm_h{hidden_size}", 4096, (1, 512, 4096), (513, 4095)),
                                      ("fused_add_rmsnorm_h{hidden_size}", 7168, (256,), (257,)), ("fused_add_rmsnorm_h{hidden_size}", 1152, (384,), (385,)),
                                      ("rmsnorm_quant_h{hidden_size}", 7168, (256,), (257, 16384)), ("rmsnorm_quant_h{hidden_size}", 1024, (), (1,)),
                                      ("fused_add_rmsnorm_quant_h{hidden_size}_fp16", 5120, (256,), (512,))):
    for rows in (*taken, *left):
        if (rows in taken) != all(operations.evaluate(clause, {"hidden_size": size, "batch_size": rows}) for clause in of_cute[definition]):
            problems.append(f"{definition} of {size} is to be {'taken' if rows in taken else 'left'} with {rows} rows")
of_heads, = operations.clauses_of_cute(build / "config/flashinfer", 8)["rmsnorm_h{hidden_size}"]
for size, rows, is_taken in ((128, 2048, True), (128, 2047, False), (512, 16384, False)):
    if operations.evaluate(of_heads, {"hidden_size": size, "batch_size": rows}) != is_taken:
        problems.append(f"norms of heads of {size} with {rows} rows")
sums = names_of("sum_norm.py")
for kind, splits in itertools.product(sums.KINDS, sums.SPLITS):
    of_vllm.add(f"splitk_reduce_{kind}_h{sums.HIDDEN}_split{splits}", "as two", 1.0, 2.0, batch_size=1)
check_all("sums of parts with their norm", of_vllm, "splitk_reduce_")
check_all("Gemma's heads", of_vllm, "gemma_qk_")
quantised = names_of("quant_per_token.py")
for kind in quantised.KINDS:
    for hidden, rows in itertools.product(quantised.hidden_sizes(kind, of_vllm.axes), quantised.ROWS):
        of_vllm.add(f"{kind}_h{hidden}", "torch.compile", 1.0, 2.0, **{quantised.axis_of(kind): rows})
    check_all(kind, of_vllm, f"{kind}_h")
by_block = names_of("quant_per_block.py")
for kind in by_block.KINDS:
    for size, rows in itertools.product(by_block.sizes_of(kind, of_vllm.axes), by_block.ROWS):
        of_vllm.add(by_block.definition_of(kind, size), "vLLM", 1.0, 2.0, **by_block.axes_of(kind, size, rows))
    check_all(kind, of_vllm, f"{kind}_b" if by_block.is_alone(kind) else f"{kind}_h")

quantised_for_sglang = KeptTimes(build / "config/sglang")
for kind, rows in itertools.product(by_block.KINDS_OF_SGLANG, by_block.ROWS):
    if rows <= 32:
        quantised_for_sglang.add(by_block.definition_of(kind, 4096), "SGLang", 1.0, 2.0, **by_block.axes_of(kind, 4096, rows))
check_all("SGLang's quantisation", quantised_for_sglang, "quant_per_block_")
behind = names_of("then_quant_per_block.py")
for engine, of_engine in (("sglang", quantised_for_sglang), ("vllm", of_vllm)):
    for kind, rule in itertools.product(behind.KINDS[engine], behind.RULES[engine]):
        for size in behind.sizes_of(kind, rule, of_engine.axes):
            of_engine.add(behind.definition_of(kind, rule, size), "as two", 1.0, 2.0, **behind.axes_of(kind, size, 1))
        check_all("quantisation by blocks behind another kernel", of_engine, f"{kind}_then_quant_per_block{rule}_")
    left = {name for name in of_engine.axes if "_then_quant_per_block" in name} - {definition for definition, *_ in of_engine.times}
    if left:
        problems.append(f"quantisation by blocks behind another kernel: {sorted(left)} of {engine} are timed by no kind and rule")

kernels = names_of("kernels.py")
for engine in ("pytorch", "flashinfer", "sglang", "vllm"):
    families = {kernels.family_of(definition) for definition in KeptTimes(build / "config" / engine).solutions}
    if unknown := families - kernels.FAMILIES.keys() - kernels.COMPARED_ELSEWHERE.keys():
        problems.append(f"kernels.py does not know {sorted(unknown)} of {engine}")

of_sglang = KeptTimes(build / "config/sglang")
layers = names_of("sglang_rewrites.py")
cases = [(*size, "norm") for size in layers.SIZES] + [(*size, None) for size in layers.SIZES_WITHOUT_NORMS]
for case in cases:
    of_sglang.add(layers.definition_of(*case), "SGLang", 1.0, 2.0, num_tokens=8, max_seq_len=layers.POSITIONS, num_slots=layers.SLOTS)
experts = names_of("sglang_routing.py")
for tokens, block_size in itertools.product((1, 64, 65), experts.BLOCK_SIZES):
    experts.keep(of_sglang, (tokens, block_size, "normal"), 1.0, 2.0)
if len(of_sglang.times) != len(cases) + len(experts.BLOCK_SIZES):
    problems.append(f"SGLang's: {sizes_of(of_sglang)}")

sums = names_of("expert_sums.py")
for engine, kinds in sums.KINDS.items():
    of_sums = KeptTimes(build / "config" / engine)
    all_sums = [(size, None) for size in sums.SIZES[engine]] + [*itertools.product(sums.SIZES_OF_NORMS[engine], kinds)]
    for of, rows in itertools.product(all_sums, (1, 64, 65)):
        of_sums.add(sums.definition_of(*of), "as two", 1.0, 2.0, batch_size=rows)
    if [len(times) for times in of_sums.times.values()] != [2] * len(all_sums):
        problems.append(f"sums of experts: {sizes_of(of_sums)}")

of_cublas = KeptTimes(build / "config/cublas")
of_parts, make_products = KeptTimes(build / "config/cublas"), names_of("cublas.py").Products
for dtype, has_bias, n, parts, m in itertools.product(("bfloat16", "float16"), (False, True), (3072, 4096), (2, 3, 4), (1, 16, 32)):
    product, total = make_products(dtype, has_bias).names_in_parts(n, 12288, parts)
    for name in {product, total} & of_parts.axes.keys():
        of_parts.add(name, "cuBLAS, product and sum", 1.0, 2.0, M=m)
check_all("products in parts", of_parts, "gemm_n4096_k12288_split")
check_all("sums of parts", of_parts, "splitk_reduce_")
products = make_products("bfloat16")
for m, us in ((1, 10.0), (32, 20.0), (999, 30.0)):
    of_cublas.add(products.name(6144, 4096), "cuBLAS", us, 16.0, M=m)
of_size = {name: times for (_, name, _), times in of_cublas.times.items()}
if sorted(size for times in of_size.values() for size in times) != [(("M", 1),), (("M", 32),)] or len(of_size) != 2:
    problems.append(f"products: {sizes_of(of_cublas)}")

of_attention = KeptTimes(build / "config/flash_attention")
axes = {"batch_size": 8, "num_pages": 100, "max_pages": 128}
for us in (4.0, 6.0, 5.0):
    of_attention.add("gqa_page_table_decode_h32_kv8_d128_ps16", "FlashAttention 3", us, 5.0, **axes)
if [list(times.values()) for times in of_attention.times.values()] != [[(6.0, 5.0)]]:
    problems.append(f"several inputs of one size: {of_attention.times}")
attention = names_of("flash_attention.py")
of_all = KeptTimes(build / "config/flash_attention")
cases = attention.all_cases(of_all.axes)
for lengths, longest, heads, kv_heads, head_dim, page_size, suffix, kind in cases.values():
    before = {"definition": f"gqa_page_table_{kind}decode_h{heads}_kv{kv_heads}_d{head_dim}_ps{page_size}{suffix}",
              "merge": f"decode_combine_d{head_dim}{suffix}", "heads": heads,
              "us": 2.0, "axes": {"batch_size": len(lengths), "num_pages": 9, "max_pages": -(-longest // page_size)}}
    attention.keep_time(of_all, before, 1.0)
    if before["definition"] in attention.merges(of_all.axes):
        attention.keep_merge(of_all, before, 1.0)
for head_dim, suffix in ((head_dim, suffix) for head_dim in (64, 128) for suffix in attention.TYPES):
    names_of("sglang_attention.py").keep(of_all, {"head_dim": head_dim, "page_size": 1, "suffix": suffix, "us": 2.0,
                                                  "axes": {"batch_size": 1, "num_pages": 9, "max_pages": 9}}, 1.0, 1.0)
images = [types.SimpleNamespace(head_dim=head_dim, suffix=suffix) for head_dim in (64, 128) for suffix in attention.TYPES]
for name, *_ in names_of("flashinfer_decode.py").timed_cases(of_all.axes, images).values():
    of_all.add(name, "FlashInfer", 1.0, 2.0, num_parts=1, batch_size=1, num_pages=9, page_size=16, len_indptr=2, num_kv_indices=9)
check_all("attention", of_all, "")
try:
    of_attention.add("gqa_page_table_decode_h32_kv8_d128_ps16", "FlashAttention 3", 1.0, 1.0, batch_size=8)
    problems.append("an axis may be missing")
except ValueError:
    pass

with tempfile.TemporaryDirectory() as work:
    for name, kept in (("vllm", of_vllm), ("cublas", of_cublas), ("flash_attention", of_attention)):
        folder, file = pathlib.Path(work, name), pathlib.Path(work, f"{name}.json")
        shutil.copytree(build / "config" / name, folder)
        kept.write(file, "NVIDIA H200", 90, "13.0")
        done = subprocess.run([build / "bin/fibshim", "bench", "--keep-from", file, folder], capture_output=True, text=True)
        if done.returncode or f"{sum(map(len, kept.times.values()))} time" not in done.stderr:
            problems.append(done.stderr)
            continue
        found = json.loads(subprocess.run([build / "bin/fibshim", "check", "--json", folder], stdout=subprocess.PIPE).stdout)["folders"][0]
        slower = {pathlib.Path(one["file"]).stem for one in found["diagnostics"] if one["rule"] == "measured-slower"}
        # Those above that were given as slower.
        expected = {solution for (_, solution, _), times in kept.times.items() for us, original in times.values() if us > 1.03 * original}
        if slower != expected:
            problems.append(f"{name}: slower are {slower}, not {expected}")
    # All of a run at once, into the folders' sources.
    pathlib.Path(work, "kept").mkdir()
    for name, kept in (("vllm.routing", of_vllm), ("cublas.products", of_cublas), ("nofolder.times", of_cublas)):
        KeptTimes.write(kept, pathlib.Path(work, "kept", f"{name}.json"), "NVIDIA H200", 90, "13.0")
    words = [here / "take_kept.sh", build, pathlib.Path(work, "kept"), pathlib.Path(work, "config")]
    done = subprocess.run(words, capture_output=True, text=True)
    taken = {path.parent.name: len(json.loads(path.read_text())["measurements"]) for path in pathlib.Path(work, "config").glob("*/measurements.json")}
    # Times are of all images of a solution, and `make test` alone has not made those for all GPUs: then they give way to new ones.
    is_whole = (build / "kernels/moe_routing/moe_routing.sm_100.cubin").exists()
    before = {name: len(json.loads(path.read_text())["measurements"]) if is_whole and (path := build / "config" / name / "measurements.json").exists() else 0
              for name in ("vllm", "cublas")}
    if done.returncode != 1 or "FAIL" not in done.stdout or "2 files taken" not in done.stdout or \
            any(taken.get(name, 0) < max(before[name], len(kept.times)) for name, kept in (("vllm", of_vllm), ("cublas", of_cublas))):
        problems.append(f"taken: {done.returncode}, {taken}, before {before}: {done.stdout}{done.stderr}")
sys.exit("\n".join(problems) or 0)
END
