#!/usr/bin/env bash
# The ready folders together: a definition's name stands for one text in all of them; the folders that an engine needs together
# have no mistakes together; of all of them, where an earlier folder's solution does not fit a later one's pattern, it is one
# of the two of which that is known; and what vLLM's own kernels are faster at is left to them.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
PYTHONDONTWRITEBYTECODE=1 python3 - "$build" <<'END'
import collections
import functools
import json
import pathlib
import subprocess
import sys

build = pathlib.Path(sys.argv[1])
problems = []

texts = collections.defaultdict(dict)
for path in sorted(build.glob("config/*/definitions/**/*.json")):
    texts[path.name].setdefault(path.read_text(), path)
if len(texts) < 800:
    problems.append(f"{len(texts)} definitions")
problems += [f"one name, several texts: {', '.join(str(path) for path in of.values())}" for of in texts.values() if len(of) > 1]


@functools.cache
def found_in(*folders):
    words = [build / "bin/fibshim", "check", "--json", ":".join(str(build / "config" / folder) for folder in folders)]
    out = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout)
    return [one for folder in out["folders"] for one in folder["diagnostics"]]


def warnings_of(*folders):
    return [one for one in found_in(*folders) if one["severity"] != "note"]


together = {"vllm": ("machete", "cublas", "flash_attention"), "sglang": ("flashinfer", "cublas", "flash_attention"), "pytorch": ("cublas", "flash_attention")}
for folders in [(first, *others) for first, others in together.items()]:
    problems += [f"{':'.join(folders)}: {one}" for one in warnings_of(*folders)]
# PyTorch's norm writes 1 / sqrt(...) too, and FlashInfer's fused add does not round the sum: neither takes vLLM's solution.
known = {"shadowed-solution": ("torch-rms-norm-", "flashinfer-fused-add-rmsnorm-", "flashinfer-cute-fused-add-rmsnorm-")}
for one in warnings_of("vllm", "machete", "cublas", "flash_attention", "flashinfer", "sglang", "pytorch"):
    if not any(f'pattern "{label}' in one["message"] for label in known.get(one["rule"], ())):
        problems.append(f"all folders together: {one}")
# As tests/gpu/op_times.py measured them.
for folder, ranges in (
        ("vllm", (("rmsnorm_h16384", "batch_size 513 to 1023"), ("fused_add_rmsnorm_h4096", "batch_size 367 to 2047, from 8193 on"),
                  ("fused_add_rmsnorm_h8192", "batch_size 184 to 2047"), ("fused_add_rmsnorm_no_weight_h16384", "batch_size 129 to 2047"),
                  ("fused_add_rmsnorm_then_quant_h8192", "batch_size 513 to 4095"), ("mul_and_silu_h1536", "num_tokens from 2049 on"),
                  ("append_paged_kv_cache_slots_kv32_d128", "num_tokens 513 to 1023"))),
        ("sglang", (("rmsnorm_h4096", "batch_size 281 to 512"), ("silu_and_mul_h28672", "num_tokens 349 to 512"))),
        ("flashinfer", (("fused_add_rmsnorm_h4096_fp16", "batch_size 281 to 512"), ("rmsnorm_quant_h16384", "batch_size from 129 on"),
                        ("gelu_tanh_and_mul_h18432", "num_tokens 65 to 511")))):
    # Of the first of several folders all is found that is found of it alone.
    notes = [one["message"] for one in found_in(folder, *together.get(folder, ()))
             if one["rule"] == "unserved-range" and f"/config/{folder}/" in one["file"]]
    for definition, rows in ranges:
        if not any(f'"{definition}" is for {rows}' in note for note in notes):
            problems.append(f"{folder}: {definition} has a solution for {rows}: {[note for note in notes if definition in note]}")
sys.exit("\n".join(problems) or 0)
END
