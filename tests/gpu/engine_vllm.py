#!/usr/bin/env python3
"""vLLM as pip installs it, with random weights, without and with the folder for it.

  tests/gpu/engine_vllm.py BUILD [--eager] [--layers N] [--rounds N] [--record]

Each turn is a process of its own: without the shim, then with it. Printed are tokens per second, the share of the GPU
time of decoding and prefill that the folder's kernels take, and how far the log probabilities of the tokens lie
from those without the shim. Weights are random: kernels, shapes and times are the engine's own, the text is not.
With --record the second turn is recorded instead: printed are tokens per second, and the shares of the kernels of decoding
in graphs beside those that the profiler tells of the first turn.
"""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
DECODED = 128


def fill(model):
    import torch
    torch.manual_seed(1234)
    for name, parameter in model.named_parameters():
        mean, deviation = (1.0, 0.1) if "norm" in name else (0.0, 1.0 if "embed" in name else 0.02)
        parameter.data.normal_(mean, deviation)
    torch.cuda.synchronize()


def profile(work):
    """Microseconds of GPU time by kernel."""
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        work()
        torch.cuda.synchronize()
    return {e.key: e.self_device_time_total for e in prof.key_averages() if e.self_device_time_total > 0}


def moved(where, build, work):
    """Moves this process, with its captured graphs, and says which kernels decode from then on."""
    done = subprocess.run([build / "bin/fibshim", "swap", where, "--pid", str(os.getpid()), "--wait", "--json"], check=True,
                          stdout=subprocess.PIPE, text=True, env={n: v for n, v in os.environ.items() if n != "LD_PRELOAD"})
    return {"where": where, "swap": json.loads(done.stdout)["processes"][0], "kernels": profile(work)}


def child(args):
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_ALLOW_INSECURE_SERIALIZATION="1", HF_HUB_OFFLINE="1")
    from vllm import LLM, SamplingParams
    with tempfile.TemporaryDirectory() as folder:
        config = {**MODEL, "num_hidden_layers": args.layers}
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048,
                  gpu_memory_utilization=0.3, enforce_eager=args.eager, seed=0, enable_prefix_caching=False,
                  max_num_seqs=64)
    llm.apply_model(fill)
    draw = random.Random(7)
    prompts = lambda n, length: [{"prompt_token_ids": [draw.randrange(3, 32000) for _ in range(length)]} for _ in range(n)]
    phases = [(f"decode, batch {batch}", prompts(batch, 32), batch * DECODED) for batch in args.batches]
    phases.append(("prefill", prompts(8, 1024), 8 * 1024))
    many = SamplingParams(temperature=0, max_tokens=DECODED, ignore_eos=True, detokenize=False)
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    told = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    out = {"logprobs": [[next(iter(step.values())).logprob for step in answer.prompt_logprobs if step]
                        for answer in llm.generate(prompts(8, 300), told, use_tqdm=False)]}
    for name, requests, tokens in phases:
        params = one if name == "prefill" else many
        work = lambda: llm.generate(requests, params, use_tqdm=False)
        work()
        rates = []
        for _ in range(args.rounds):
            begun = time.perf_counter()
            work()
            rates.append(tokens / (time.perf_counter() - begun))
        # A profiler would take CUPTI from the recording.
        out[name] = {"tokens_per_s": sorted(rates)[len(rates) // 2], "kernels": {} if args.record else profile(work)}
    if args.record:
        pass
    elif "libfibshim" in os.environ.get("LD_PRELOAD", "") and not args.eager:
        out["moves"] = [moved(where, args.build, lambda: llm.generate(phases[0][1], many, use_tqdm=False))
                        for where in ("--off", "--on")]
    json.dump(out, open(args.child, "w"))


def turn(args, build, environment, prefix):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [*prefix, sys.executable, __file__, str(build), "--child", file.name, "--layers", str(args.layers),
                 "--rounds", str(args.rounds), "--batches", ",".join(map(str, args.batches))] + (["--eager"] if args.eager else []) + \
                (["--record"] if prefix and args.record else [])
        subprocess.run(words, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def compare_recording(args, build, folders):
    """Of default mode: what runs in graphs is decoding, of the first batch size alone."""
    args.batches = args.batches[:1]
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work, "vllm.jsonl")
        base = turn(args, build, {}, [])
        recorded = turn(args, build, {"FIBSHIM_STATS_DIR": work},
                        [build / "bin/fibshim", "record", "-o", str(path), "--times", "cupti", "-c", ":".join(map(str, folders)), "--"])
        print(subprocess.run([build / "bin/fibshim", "record", "--summary", path, "-n", "15"], stdout=subprocess.PIPE, text=True).stdout)
        kernels = [json.loads(line) for line in path.read_text().splitlines()][1:]
    phase = f"decode, batch {args.batches[0]}"
    for name in (phase, "prefill"):
        print(f"{name}: {base[name]['tokens_per_s']:.0f} tokens/s without, {recorded[name]['tokens_per_s']:.0f} recorded")
    normal = lambda name: re.sub(r"\s+", "", name.replace("(anonymous namespace)", "{anonymous}"))
    times = lambda one: sum(times["sum_us"] for times in (one["warm_up"], one["times"]) if times)
    ran, profiled = {}, {}
    for kernel in kernels:
        for one in kernel["runs"]:
            if one["in_graph"]:
                name = normal(kernel["demangled"])
                ran[name] = ran.get(name, 0) + times(one)
    for name, us in base[phase]["kernels"].items():
        if normal(name) in ran:
            profiled[normal(name)] = profiled.get(normal(name), 0) + us
    problems = ["nothing ran in graphs"] if not profiled else []
    for name, us in sorted(profiled.items(), key=lambda item: -item[1]):
        mine, its = ran[name] / sum(ran.values()), us / sum(profiled.values())
        print(f"measured: {mine:7.2%} recorded {its:7.2%} profiled  {name[:80]}")
        if abs(mine - its) > max(0.03 * its, 0.001):
            problems.append(f"{mine:.2%} recorded, {its:.2%} profiled: {name[:80]}")
    print(f"{'FAIL' if problems else 'PASS'} vllm.default.record: shares of decoding as the profiler tells them" +
          (f": {problems[0]}" if problems else ""))
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    parser.add_argument("--record", action="store_true", help="record in default mode, and compare with the profiler")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    build = args.build.resolve()
    folders = [build / "config" / name for name in ("vllm", "cublas")]
    if args.record:
        return compare_recording(args, build, folders)
    read = lambda pattern: [json.loads(path.read_text()) for folder in folders for path in folder.glob(pattern)]
    ours = {solution["launch"]["kernel"] for solution in read("solutions/**/*.json")}
    symbols = [pattern["match"]["symbol"] for pattern in read("patterns/**/*.json")]
    known = re.compile("|".join(f"(?:{symbol[3:]})" for symbol in symbols if symbol.startswith("re:")))
    mode = "eager" if args.eager else "default"
    with tempfile.TemporaryDirectory() as stats:
        base = turn(args, build, {}, [])
        with_shim = turn(args, build, {"FIBSHIM_STATS_DIR": stats},
                         [build / "bin/fibshim", "run", "-c", ":".join(map(str, folders)), "--"])
        text = subprocess.run([build / "bin/fibshim", "stats", "--json", "--dir", stats], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
    totals = json.loads(text)["totals"]
    distances = [abs(a - b) for x, y in zip(base["logprobs"], with_shim["logprobs"]) for a, b in zip(x, y)]
    for move in with_shim.get("moves", []):
        count = sum(name in ours for name in move["kernels"])
        print(f"{'PASS' if (count == 0) == (move['where'] == '--off') else 'FAIL'} vllm.{mode}.swap{move['where']}: "
              f"{move['swap']['graphs_moved']} graphs moved, {move['swap']['graphs_kept']} kept; {count} kernels of the folders then decode")
    for phase in [phase for phase in base if phase != "logprobs"]:
        kernels = with_shim[phase]["kernels"]
        share = lambda times, is_meant: sum(us for name, us in times.items() if is_meant(name)) / sum(times.values())
        replaced = share(kernels, lambda name: name in ours)
        print(f"{mode}, {phase}: {100 * share(base[phase]['kernels'], known.fullmatch):.1f} % of GPU time known by name, "
              f"{100 * replaced:.1f} % replaced, "
              f"{base[phase]['tokens_per_s']:.0f} tokens/s without, {with_shim[phase]['tokens_per_s']:.0f} with; GPU "
              f"{sum(base[phase]['kernels'].values()) / 1e3:.1f} ms without, {sum(kernels.values()) / 1e3:.1f} with")
        print(f"{'PASS' if replaced > 0 else 'FAIL'} vllm.{mode}.{phase.replace(', batch ', '')}: kernels of the folder ran")
    mean = sum(distances) / len(distances)
    print(f"{mode}: {totals['hit']} hits, {totals['error']} errors; log probabilities differ by {mean:.4f} in the mean, "
          f"{max(distances):.3f} at most, of {len(distances)}")
    is_fine = totals["hit"] > 0 and totals["error"] == 0 and mean < 0.1
    print(f"{'PASS' if is_fine else 'FAIL'} vllm.{mode}: hits, no errors, log probabilities near those without")
    return 0


sys.exit(main())
