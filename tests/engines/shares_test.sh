#!/usr/bin/env bash
# What tests/gpu/engine_vllm.py says of a profile, on one that is made of the kernels in data/: all of it but vLLM and the GPU.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
here=$(realpath "$(dirname "$0")")
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here:$here/../gpu python3 - "$build" <<'END'
import contextlib
import io
import json
import pathlib
import sys
import types
import engine_vllm
import shares
from families import family_of
from known_kernels import TABLES, demangle, is_known

build = pathlib.Path(sys.argv[1])
folders = [build / "config" / name for name in ("vllm", "machete", "cublas", "flash_attention")]
known = is_known(build / "bin/fibshim", folders)
problems = []


def expect(is_so, what):
    if not is_so:
        problems.append(what)


def kernels(*tables):
    lines = [line.split() for table in tables for line in (TABLES / table).read_text().splitlines()[1:]]
    return [demangle(line[2]) for line in lines if {"vllm-0.25.0", "cublas-13.1.0"} & set(line[0].split(","))]


# As vLLM 0.25 runs a Llama in bfloat16: what is compiled at run time, and the C++ kernels of these names.
compiled = dict.fromkeys(kernels("vllm.recorded", "cublas.recorded"), 2.0)
norm, norm_of_half = (next(name for name in kernels("vllm.table") if f"vllm::rms_norm_kernel<{kind}, 8, 2, true>" in name)
                      for kind in ("c10::BFloat16", "c10::Half"))
attention = next(name for name in kernels("flash_attention.table") if known(name))
profile = {**compiled, norm: 10.0, attention: 40.0, "Memcpy DtoD (Device -> Device)": 1.0}

expect(known(norm) and known(norm_of_half), "norms of vLLM are not known")
expect(shares.share({}, known) == 0, "the share of nothing")
expect(shares.share({"a": 3.0, "b": 1.0}, "b".__eq__) == 0.25, "a share")
expect(family_of(norm) == "norm" and family_of("triton_poi_fused_mul_silu_slice_1") == "activation", "families")
lines, unknown = shares.of_unknown(profile, known)
expect(not unknown, f"not known: {unknown}")
expect(any("embedding_rms_norm_0: gathers the rows" in line for line in lines), f"why a norm is not known: {lines}")
expect(any(line.startswith("sampling: ") for line in lines), f"other families: {lines}")

# One that the folder does not know is a failure, and only in the families that it must know.
strange = {**profile, "void vllm::rms_norm_of_tomorrow<c10::BFloat16>(c10::BFloat16*)": 20.0, "_gumbel_sample_of_tomorrow": 20.0}
lines, unknown = shares.of_unknown(strange, known)
expect(len(unknown) == 1 and "rms_norm_of_tomorrow" in unknown[0], f"an unknown norm: {unknown}")

expect(shares.readme_row("default", 32, "decode, batch 8", 0.856, 0.0216, 1657.4, 2011.0) ==
       "| default mode (torch.compile, CUDA graphs), 32 layers: decode, batch 8 | 86 %, 2.2 % | 1,657, 2,011 |", "a row")
expect("`--enforce-eager`, 8 layers: prefill | 0 %, 100 % |" in shares.readme_row("eager", 8, "prefill", 0.0, 1.0, 1.0, 1.0), "an eager row")


# All that is printed of a mode, of what its processes would have told.
def told(kernels, graphs, moved):
    phase = {"tokens_per_s": 100.0, "all": [99.0, 100.0, 101.0, 100.0], "host_share": 0.99, "kernels": kernels}
    return {"moves": [{"graphs_moved": graphs, "graphs_kept": 0}], "decode, batch 1": phase, "prefill": phase,
            "logprobs": [[-1.0 + moved, -2.0]], "decoded": [[[5, -0.1, -0.2]], [[7, -0.1, -0.2], [8, -0.3, -0.4]]]}


def printed(profile, returncode=0, apart_by=0.0, **more):
    ours = "fibshim_kernel"
    # As it comes from another process. The mean is of two log probabilities, of which one moves.
    engine_vllm.turn = lambda args, *_: json.loads(json.dumps({
        "--off": told(profile, 3, 0.1 * args.eager), "--on": told({**profile, ours: 5.0}, 3, 0.1 * args.eager + 2 * apart_by),
        "about": {"engine": "vLLM 0.25.0", "gpu": "NVIDIA H200"}}))
    stats = types.SimpleNamespace(returncode=returncode, stdout='{"totals": {"hit": 3, "error": 0}}')
    engine_vllm.subprocess = types.SimpleNamespace(run=lambda *_, **__: stats, PIPE=None)
    args = types.SimpleNamespace(**{"eager": False, "both": False, "kernels": 3, "apart": False, "batches": [1], "contexts": [], "layers": 32, "tensor_parallel": 1, **more})
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        engine_vllm.report_modes(args, build, folders, {ours}, known)
    return text.getvalue()


fine = printed(profile)
expect("FAIL" not in fine and fine.count("PASS vllm.default.") == 6, f"a mode:\n{fine}")
expect("| vLLM 0.25.0's wheel, Llama with rows of 4096, NVIDIA H200 |" in fine and fine.count("\n| default mode") == 2, f"a table:\n{fine}")
expect(fine.count("; the host computes in 99 % of the time off, 99 % on\n") == 2, f"what decides:\n{fine}")
expect("FAIL vllm.eager.decode1.known: " in printed(strange, eager=True), "an unknown norm fails nothing")
expect("FAIL vllm.default.decode1: kernels of the folder ran" not in fine, "hits")
expect(".ranks: " not in fine and "PASS vllm.default.ranks: " in printed(profile, tensor_parallel=2), "ranks are compared where there are several")
expect("FAIL vllm.default.ranks: " in printed(profile, returncode=1, tensor_parallel=2), "ranks that differ fail")
printed({})  # an empty profile is not the end of the run
# Eager, vLLM's own log probabilities are 0.05 from those in default mode.
expect("PASS vllm.default: " in printed(profile, apart_by=0.09), "less than 0.1 apart")
expect("FAIL vllm.default: " in printed(profile, apart_by=0.11), "more than 0.1 apart")
for apart_by, expected in ((0.04, "PASS"), (0.06, "FAIL")):
    both = printed(profile, both=True, apart_by=apart_by)
    expect(both.count(f"{expected} vllm.default: ") == both.count(f"{expected} vllm.eager: ") == 1, f"{apart_by} apart in two modes:\n{both}")
sys.exit("\n".join(problems) or 0)
END
