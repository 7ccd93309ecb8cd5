#!/usr/bin/env python3
"""Workloads that `fibshim record --tensors` keeps of vLLM: verified and benchmarked, and read by flashinfer-bench.

  tests/gpu/vllm_workloads.py BUILD [--compiled] [--keep DIR]
  tests/gpu/vllm_workloads.py --read DIR      a dataset, or where --keep has left one

8 layers, eager, or compiled without CUDA graphs: norms, silu·mul and the smaller matrix products, two launches of each shape (those of
RoPE do not tell all axes). Of cuBLAS's products the recorded outputs say what is right. --keep: leaves the small ones, 24 MB in all,
in parts of a tar file.
"""
import argparse
import collections
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

LAYERS = 8
STEPS = ((1, 7), (4, 8))  # prompts, and tokens of each
DEFINITIONS = ("*rmsnorm*_h4096", "silu_and_mul*_h28672", "gemm_n6144_k4096", "gemm_n4096_*", "splitk_reduce_n4096_*")
KEPT_BYTES, PART_BYTES = 24 << 20, 15 << 20
TOLERANCE = 0.02  # of the definition's reference in bfloat16


def child(args):
    import engine_vllm
    from vllm import SamplingParams
    more = {"compilation_config": {"cudagraph_mode": "NONE"}} if args.compiled else {}
    llm = engine_vllm.make_engine(LAYERS, not args.compiled, max_num_seqs=16, max_num_batched_tokens=64,
                                  enable_chunked_prefill=True, **more)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    for count, length in STEPS:
        llm.generate(engine_vllm.prompts_of(count, length), params, use_tqdm=False)


def say(is_fine, name, found):
    print(f"{'PASS' if is_fine else 'FAIL'} {name}: {found}", flush=True)


def records_of(root):
    """(the file below workloads/, its records) of each definition."""
    for path in sorted(root.glob("workloads/**/*.jsonl")):
        yield path.relative_to(root), [json.loads(line) for line in path.read_text().splitlines()]


def blob_of(record):
    return next(one["path"] for one in record["workload"]["inputs"].values() if one["type"] == "safetensors")


def record(args, build, root):
    words = [build / "bin/fibshim", "record", "-o", root / "vllm.jsonl", "-c", f"{build}/config/vllm:{build}/config/cublas", "--tensors",
             root / "tensors", "--tensors-keep", "shape:2", "--tensors-limit", "1500mb", "--times", "events"]
    for glob in DEFINITIONS:
        words += ["--tensors-of", glob]
    words += ["--", sys.executable, __file__, build, "--child"] + (["--compiled"] if args.compiled else [])
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "FIBSHIM_STATS_DIR": str(root)})
    print(*(line for line in done.stderr.splitlines() if line.startswith("fibshim record")), sep="\n")
    if done.returncode != 0:
        print(done.stderr[-4000:])
    return done.returncode == 0


def judge(build, command, folder, definition, root):
    """The records of the workloads, of what the folder has for the definition."""
    options = ["--trials", "1", "--iterations", "10"]
    if command == "verify":
        text = next(root.glob(f"definitions/**/{definition}.json")).read_text()
        axes = [name for name, axis in json.loads(text)["axes"].items() if axis["type"] == "var"]
        options = ["--runs", "1"] + (["--axis", f"{axes[0]}=1"] if len(axes) == 1 else [])  # made inputs: a case is enough
    done = subprocess.run([build / "bin/fibshim", command, folder, definition, "--workloads", root, "--json", "-q", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        judged = json.loads(done.stdout)["records"]
    except (ValueError, KeyError):
        print(done.stdout[-2000:], done.stderr[-2000:])
        return []
    return [one for one in judged if any(given["type"] == "safetensors" for given in one["workload"]["inputs"].values())]


def judge_all(build, root, folders):
    for path, records in records_of(root):
        name = path.stem
        shapes = sorted({tuple(one["workload"]["axes"].values()) for one in records})
        size = sum((root / blob_of(one)).stat().st_size for one in records)
        print(f"measured: {name}: {len(records)} workloads of shapes {shapes}, {size / 1e6:.1f} MB")
        folder = next(one for one in folders if any(one.glob(f"definitions/**/{name}.json")))
        for command in ("verify", "bench"):
            judged = judge(build, command, folder, name, root)
            found = collections.Counter(one["evaluation"]["status"] for one in judged)
            text = ", ".join(f"{count} {status}" for status, count in sorted(found.items())) or "none judged"
            if command == "bench":
                times = [(*one["workload"]["axes"].values(), round(1e3 * one["evaluation"]["performance"]["latency_ms"], 2))
                         for one in judged if one["evaluation"].get("performance")]
                text += f"; axes and microseconds: {sorted(set(times))[:8]}"
            say(set(found) == {"PASSED"}, f"{command} {name} with vLLM's tensors", text)
            for one in judged:
                if one["evaluation"]["status"] != "PASSED":
                    print("    ", one["solution"], one["workload"]["axes"], one["evaluation"].get("log", "")[:300])


def keep(root, output):
    """The smallest workloads, as a dataset in parts of a tar file."""
    output.mkdir(parents=True, exist_ok=True)
    size_of = lambda one: (root / blob_of(one)).stat().st_size
    everything = [(size_of(one), path, one) for path, records in records_of(root) for one in records]
    kept, total = collections.defaultdict(list), 0
    for size, path, one in sorted(everything, key=lambda item: item[0]):
        if total + size <= KEPT_BYTES:
            kept[path].append(one)
            total += size
    small = root.parent / "small"
    for path, records in kept.items():
        (small / path).parent.mkdir(parents=True, exist_ok=True)
        (small / path).write_text("".join(json.dumps(one) + "\n" for one in records))
        for file in (*(blob_of(one) for one in records), str(path).replace("workloads/", "definitions/", 1).replace(".jsonl", ".json")):
            (small / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, small / file)
    whole = root.parent / "small.tar"
    with tarfile.open(whole, "w") as tar:
        tar.add(small, arcname="tensors")
    data = whole.read_bytes()
    for number, begin in enumerate(range(0, len(data), PART_BYTES)):
        (output / f"vllm_workloads.tar.{number}").write_bytes(data[begin:begin + PART_BYTES])
    print(f"kept: {sum(map(len, kept.values()))} of {len(everything)} workloads of {len(kept)} definitions, {total / 1e6:.1f} MB")


def read(root):
    """Each workload by flashinfer-bench's own loader; what the original has put out beside what the definition's reference says."""
    from workloads import read_dataset
    dataset = read_dataset(str(root))
    if dataset is None:
        return
    import safetensors.torch
    for name, traces in sorted(dataset.workloads.items()):
        definition, worst, problems = dataset.definitions[name], 0.0, []
        scope = {}
        exec(definition.reference, scope)
        for trace in traces:
            shapes = dict(zip(definition.inputs, definition.get_input_shapes(trace.workload.axes)))
            inputs = {}
            for key, given in trace.workload.inputs.items():
                if given.type == "scalar":
                    inputs[key] = given.value
                    continue
                tensors = safetensors.torch.load_file(str(dataset.root / given.path))
                inputs[key] = tensors[given.tensor_key]
                if list(inputs[key].shape) != list(shapes[key]):
                    problems.append(f"{key} has the shape {list(inputs[key].shape)}, not {list(shapes[key])}")
                if str(inputs[key].dtype) != f"torch.{definition.inputs[key].dtype.value}":
                    problems.append(f"{key} is {inputs[key].dtype}")
            wanted = scope["run"](**inputs)
            wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
            for key, value in zip(definition.outputs, wanted):
                found, value = tensors[f"output.{key}"].double(), value.double()
                difference = (found - value).abs()
                worst = max(worst, difference.max().item())
                if not bool((difference <= TOLERANCE + TOLERANCE * value.abs()).all()):
                    problems.append(f"{key} is {difference.max().item():.4g} off the reference")
        say(not problems, f"flashinfer-bench reads {name}",
            problems[0] if problems else f"{len(traces)} workloads; the original's outputs are {worst:.4g} off the definition's reference at most")


def read_kept(folder):
    parts = sorted(folder.glob("vllm_workloads.tar.*"), key=lambda path: int(path.suffix[1:]))
    if not parts:
        return read(folder)
    with tempfile.TemporaryDirectory() as work:
        whole = pathlib.Path(work, "tar")
        whole.write_bytes(b"".join(part.read_bytes() for part in parts))
        with tarfile.open(whole) as tar:
            tar.extractall(work)
        return read(pathlib.Path(work, "tensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--read", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        return read_kept(args.read)
    if args.build is None:
        parser.error("needs BUILD, or --read DIR")
    if args.child:
        return child(args)
    begun = time.monotonic()
    build = args.build.resolve()
    with tempfile.TemporaryDirectory() as work:
        root = pathlib.Path(work)
        is_fine = record(args, build, root)
        has_any = any((root / "tensors").glob("workloads/**/*.jsonl"))
        say(is_fine and has_any, "vLLM's tensors are recorded", f"{time.monotonic() - begun:.0f} s")
        if not has_any:
            return 1
        # verify makes one launch of each solution where no pattern says that it holds pointers twice.
        without = shutil.copytree(build / "config/cublas", root / "cublas", ignore=shutil.ignore_patterns("patterns"))
        judge_all(build, root / "tensors", (build / "config/vllm", without))
        if args.keep:
            keep(root / "tensors", args.keep)
        if importlib.util.find_spec("torch"):
            read(root / "tensors")
    print(f"measured: {time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
