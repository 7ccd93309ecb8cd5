#!/usr/bin/env bash
# The ready folders together: a definition's name stands for one text in all of them; the folders that an engine needs together
# have no mistakes together; and of all of them, where an earlier folder's solution does not fit a later one's pattern, it is one
# of the two of which that is known.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
PYTHONDONTWRITEBYTECODE=1 python3 - "$build" <<'END'
import collections
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


def warnings_of(*folders):
    words = [build / "bin/fibshim", "check", "--json", ":".join(str(build / "config" / folder) for folder in folders)]
    out = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout)
    return [one for folder in out["folders"] for one in folder["diagnostics"] if one["severity"] != "note"]


for folders in (("vllm", "cublas", "flash_attention"), ("sglang", "flashinfer", "cublas", "flash_attention"), ("pytorch", "cublas", "flash_attention")):
    problems += [f"{':'.join(folders)}: {one}" for one in warnings_of(*folders)]
# PyTorch's norm writes 1 / sqrt(...) too, and FlashInfer's fused add does not round the sum: neither takes vLLM's solution.
known = {"shadowed-solution": ("torch-rms-norm-", "flashinfer-fused-add-rmsnorm-", "flashinfer-cute-fused-add-rmsnorm-")}
for one in warnings_of("vllm", "cublas", "flash_attention", "flashinfer", "sglang", "pytorch"):
    if not any(f'pattern "{label}' in one["message"] for label in known.get(one["rule"], ())):
        problems.append(f"all folders together: {one}")
sys.exit("\n".join(problems) or 0)
END
