#!/usr/bin/env python3
"""SGLang as pip installs it, with random weights, without and with the folders for it.

  tests/gpu/engine_sglang.py BUILD [--model NAME] [--layers N] [--tensor-parallel N] [--rounds N] [--batches N,...] [--temperature T] [--kernels N] [--option NAME=VALUE ...]

One engine in its default mode: its scheduler is a process of its own, with --tensor-parallel one for each GPU, and replays CUDA graphs of
prefills and of decoding. Those processes are moved by `fibshim swap --off` and `--on` between rounds, so that its captured graphs run the engine's kernels and ours by turns.
Printed is what tests/gpu/engine_vllm.py prints. --option: one of SGLang's own, such as attention_backend=triton.
"""
import argparse
import collections
import gzip
import importlib.util
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "engines"))
import engine_models
import engine_turns
import shares
from known_kernels import is_known

FOLDERS = ("sglang", "flashinfer", "cublas", "pytorch", "flash_attention")
DECODED = 128

# Before SGLang is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


# SGLang's processes are spawned, and import this file: the weights are made in the scheduler's.
if __name__ == "__mp_main__":
    from sglang.srt.model_loader import loader, weight_utils
    loader.initialize_dummy_weights = weight_utils.initialize_dummy_weights = engine_models.fill


def make_engine(args, folder):
    import sglang
    engine_models.write(folder, engine_models.MODELS[args.model], args.layers)
    return sglang.Engine(**{"model_path": folder, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16", "random_seed": 0,
                            "context_length": 2048, "mem_fraction_static": 0.3, "disable_radix_cache": True,
                            "cuda_graph_max_bs_decode": max(64, *args.batches), "log_level": "error", "tp_size": args.tensor_parallel, **args.options})


def is_scheduler(pid):
    return b"sglang::scheduler" in pathlib.Path("/proc", str(pid), "cmdline").read_bytes()


def profile(engine, work):
    """Microseconds of GPU time by kernel, of all schedulers' processes."""
    times = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        engine.start_profile(output_dir=folder, activities=["GPU"])
        work()
        engine.stop_profile()
        for path in pathlib.Path(folder).rglob("*.json*"):
            text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for event in json.loads(text)["traceEvents"]:
                if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                    times[event["name"]] += event["dur"]
    return times


def tell(engine, asked, starts):
    """As engine_vllm.tell()."""
    def answers(prompts, tokens, **more):
        return engine.generate(input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
                               return_logprob=True, **more)
    prompts = answers(asked, 1, logprob_start_len=0)
    decoded = [one for batch in starts for one in answers(batch, 64, top_logprobs_num=2)]
    return {"logprobs": [[step[0] for step in answer["meta_info"]["input_token_logprobs"] if step[0] is not None] for answer in prompts],
            "decoded": [[(step[1], step[0], sorted((one[0] for one in top), reverse=True)[1])
                         for step, top in zip(answer["meta_info"]["output_token_logprobs"], answer["meta_info"]["output_top_logprobs"])]
                        for answer in decoded]}


def child(args):
    import torch
    import sglang
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(args, folder)
    pids = [one.pid for one in multiprocessing.active_children() if is_scheduler(one.pid)]
    if len(pids) != args.tensor_parallel:
        sys.exit(f"{len(pids)} of SGLang's processes call themselves its scheduler, not {args.tensor_parallel}")
    draw = random.Random(7)
    prompts = lambda count, length: [[draw.randrange(3, 32000) for _ in range(length)] for _ in range(count)]
    phases = [*((engine_turns.phase_of(batch), prompts(batch, 32), DECODED) for batch in args.batches), ("prefill", prompts(8, 1024), 1)]
    ways = ("--off", "--on") if "libfibshim" in os.environ.get("LD_PRELOAD", "") else ("apart",)
    out = {way: {"moves": []} for way in ways}
    out["about"] = {"engine": f"SGLang {sglang.__version__}", "gpu": torch.cuda.get_device_name() + (f", {len(pids)} ranks" if len(pids) > 1 else ""),
                    "model": engine_models.about(args.model)}

    def go(way):
        if way != "apart":
            out[way]["moves"] += [engine_turns.move(way, args.build, pid) for pid in pids]

    def work(_, requests, decoded):
        sampling = {"temperature": args.temperature, **({"top_k": 40, "top_p": 0.95} if args.temperature else {})}
        engine.generate(input_ids=requests, sampling_params={**sampling, "max_new_tokens": decoded, "ignore_eos": True})

    asked, starts = prompts(8, 300), [prompts(batch, 100) for batch in args.batches]
    for way in ways:
        go(way)
        out[way].update(tell(engine, asked, starts))
    rates = engine_turns.rates(ways, phases, args.rounds, go, work, is_in_thread=False)
    for way in ways:
        go(way)
        for name, *rest in phases:
            out[way][name] = {**rates[way][name], "kernels": profile(engine, lambda: work(name, *rest))}
    pathlib.Path(args.child).write_text(json.dumps(out))
    # SGLang's own end waits for its processes, then kills this one, too.
    for one in multiprocessing.active_children():
        one.kill()
    os._exit(0)


def turn(args, environment, prefix):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [*prefix, sys.executable, __file__, str(args.build), "--child", file.name, "--model", args.model, "--layers", str(args.layers),
                 "--tensor-parallel", str(args.tensor_parallel), "--rounds", str(args.rounds), "--batches", ",".join(map(str, args.batches)), "--temperature", str(args.temperature),
                 *engine_turns.option_words(args.options)]
        subprocess.run(words, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def kernel_libraries():
    found = importlib.util.find_spec("sgl_kernel")
    return [path for place in (found.submodule_search_locations if found else ()) for glob in ("sm90/common_ops*.so", "flash_ops*.so")
            for path in sorted(pathlib.Path(place).glob(glob))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--model", choices=engine_models.MODELS, default="llama")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tensor-parallel", type=int, default=1, help="processes with a GPU each")
    parser.add_argument("--rounds", type=int, default=4, help="at least 2")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    parser.add_argument("--temperature", type=float, default=0, help="of what is timed: sampled from the 40 likeliest tokens that make up 95 %%")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="print the times of the N longest")
    parser.add_argument("--apart", action="store_true", help="also a process without the shim")
    engine_turns.add_option(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    folders = [args.build / "config" / name for name in FOLDERS]
    read = lambda pattern: [json.loads(path.read_text()) for folder in folders for path in folder.glob(pattern)]
    ours = {solution["launch"]["kernel"] for solution in read("solutions/**/*.json")}
    known = is_known(args.build / "bin/fibshim", folders, kernel_libraries())
    with tempfile.TemporaryDirectory() as stats:
        result = turn(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", ":".join(map(str, folders)), "--"])
        text = subprocess.run([args.build / "bin/fibshim", "stats", "--json", "--dir", stats], check=True, stdout=subprocess.PIPE, text=True).stdout
        if args.kernels:
            for by in ("definition", "pattern"):
                subprocess.run([args.build / "bin/fibshim", "stats", "--by", by, "--dir", stats], check=True)
    if args.apart:
        result.update(turn(args, {}, []))
    rows = engine_turns.report("sglang", args.model, result, json.loads(text)["totals"], ours, known, engine_turns.phase_of(args.batches[0]),
                               args.layers, args.apart, args.kernels)
    print(shares.readme_head(**result["about"]), *rows, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
