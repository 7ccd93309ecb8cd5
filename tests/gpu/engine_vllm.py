#!/usr/bin/env python3
"""vLLM as pip installs it, with random weights, without and with the folders for it.

  tests/gpu/engine_vllm.py BUILD [--eager | --both] [--layers N] [--model NAME | --experts N] [--tensor-parallel N] [--rounds N] [--tokens N] [--batches N,...] [--contexts N,...] [--option NAME=VALUE ...] [--apart | --record]

One process, or with --tensor-parallel the ranks of a job, moved by `fibshim swap --off` and `--on` between rounds, so that its captured
graphs run the engine's kernels and ours by turns. Printed are tokens per second, the share of the GPU time that the folders' kernels
take, and how far log probabilities and decoded tokens lie from the engine's own; which families of kernels are not known, of which
norms, activations, RoPE and KV writes must be; and at the end README's table. --both: default mode and eager, and in neither may log
probabilities be further from the engine's own than its two modes are from each other. --apart: also a process without the shim.
--record: the second process is recorded instead, and the shares of kernels in its decoding graphs stand beside those that the
profiler tells of a first one and a third, without the shim. Weights are random: kernels, shapes and times are the engine's own, the
text is not. --experts: a Mixtral of so many, of which a token takes two. --option: one of vLLM's own, such as
async_scheduling=false.

--contexts: sequences that end at these lengths, instead of prompts of 32 tokens. They are prefilled once, and vLLM's prefix cache holds them
for all rounds, so that what is timed is decoding alone.
"""
import argparse
import collections
import importlib.util
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "engines"))
import engine_models
import engine_turns
import shares
from engine_turns import distances_of, move, phase_of  # the first also for vllm_shadow.py
from known_kernels import is_known, normal

DECODED_IN_CONTEXT = 64

# Before vLLM is imported.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_ALLOW_INSECURE_SERIALIZATION="1", HF_HUB_OFFLINE="1")


def start_profiler(worker):
    import torch
    worker.profiler_of_test = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    worker.profiler_of_test.start()


def stop_profiler(worker):
    import torch
    torch.cuda.synchronize()
    worker.profiler_of_test.stop()
    return {e.key: e.self_device_time_total for e in worker.profiler_of_test.key_averages() if e.self_device_time_total > 0}


def profile(llm, work):
    """Microseconds of GPU time by kernel, of all ranks together."""
    llm.collective_rpc(start_profiler)
    work()
    times = collections.Counter()
    for of_rank in llm.collective_rpc(stop_profiler):
        times.update(of_rank)
    return times


def make_engine(layers, is_eager=False, contexts=(), model=engine_models.LLAMA, **more):
    from vllm import LLM
    with tempfile.TemporaryDirectory() as folder:
        engine_models.write(folder, model, layers)
        llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=max([2048, *contexts]),
                  enforce_eager=is_eager, seed=0, enable_prefix_caching=bool(contexts),
                  **{"gpu_memory_utilization": 0.3, "max_num_seqs": 64, **more})
    llm.apply_model(engine_models.fill)
    return llm


def prompts_of(count, length, draw=None):
    draw = draw or random.Random(7)
    return [{"prompt_token_ids": [draw.randrange(3, 32000) for _ in range(length)]} for _ in range(count)]


def tell(llm, asked, starts):
    """Log probabilities of the prompts asked, and of 64 tokens decoded from each batch of the starts: of each step the token,
    its log probability, and the second's."""
    from vllm import SamplingParams
    told = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    chosen = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False, logprobs=2)
    return {"logprobs": [[next(iter(step.values())).logprob for step in answer.prompt_logprobs if step]
                         for answer in llm.generate(asked, told, use_tqdm=False)],
            "decoded": [[(token, *sorted((one.logprob for one in step.values()), reverse=True)[:2])
                         for token, step in zip(answer.outputs[0].token_ids, answer.outputs[0].logprobs)]
                        for prompts in starts for answer in llm.generate(prompts, chosen, use_tqdm=False)]}


def decoding_phases(args, llm, prompts):
    """(name, requests, tokens of each) by batch, and by context where those are given."""
    if not args.contexts:
        return [(phase_of(batch), prompts(batch, 32), args.tokens) for batch in args.batches]
    cache = llm.llm_engine.vllm_config.cache_config
    room = (cache.num_gpu_blocks or 1 << 30) * cache.block_size
    needed = max(args.batches) * max(args.contexts) + 2 * 8192  # prefill's, too
    if room < needed:
        sys.exit(f"the KV cache holds {room:,} tokens of {needed:,}: give a larger --memory")
    longest = prompts(max(args.batches), max(args.contexts))
    # One token more than whole pages: all the rest comes from the prefix cache, and the first step decodes, too.
    length = lambda context: (context - DECODED_IN_CONTEXT - 1) // cache.block_size * cache.block_size + 1
    return [(phase_of(batch, context), [{"prompt_token_ids": one["prompt_token_ids"][:length(context)]} for one in longest[:batch]],
             DECODED_IN_CONTEXT) for context in args.contexts for batch in args.batches]


def child(args):
    import torch
    import vllm
    from vllm import SamplingParams
    model = engine_models.mixtral(args.experts) if args.experts else engine_models.MODELS[args.model]
    llm = make_engine(args.layers, args.eager, args.contexts, model, gpu_memory_utilization=args.memory,
                      tensor_parallel_size=args.tensor_parallel, **{"max_num_seqs": max(64, *args.batches), **args.options})
    draw = random.Random(7)
    prompts = lambda n, length: prompts_of(n, length, draw)
    phases = [*decoding_phases(args, llm, prompts), ("prefill", prompts(8, 1024), 1)]
    is_shimmed = "libfibshim" in os.environ.get("LD_PRELOAD", "") and not args.record
    is_recorded = args.record and "libfibshim" in os.environ.get("LD_PRELOAD", "")  # a profiler would take CUPTI from the recording
    salts = itertools.count()
    ways = ("--off", "--on") if is_shimmed else ("apart",)
    out = {way: {"moves": []} for way in ways}
    is_parallel = args.tensor_parallel > 1
    out["about"] = {"engine": f"vLLM {vllm.__version__}", "gpu": torch.cuda.get_device_name() + (f", {args.tensor_parallel} ranks" if is_parallel else ""),
                    "model": f"Mixtral of {args.experts} experts" if args.experts else engine_models.about(args.model)}

    def go(way):
        if is_shimmed:
            out[way]["moves"].append(move(way, args.build, job=os.environ.get("FIBSHIM_JOB") if is_parallel else None))

    def work(name, requests, decoded):
        if args.contexts and name == "prefill":  # never from the prefix cache
            requests = [{**one, "cache_salt": str(next(salts))} for one in requests]
        llm.generate(requests, SamplingParams(temperature=0, max_tokens=decoded, ignore_eos=True, detokenize=False), use_tqdm=False)

    asked = prompts(8, 300)
    starts = [prompts(batch, 100) for batch in args.batches]
    for way in ways:
        go(way)
        if args.contexts:
            llm.reset_prefix_cache()
        if not args.record:  # whose graphs are to run what the profiler sees
            out[way].update(tell(llm, asked, starts))
    rates = engine_turns.rates(ways, phases, args.rounds, go, work, is_in_thread=not is_parallel)
    for way in ways:
        go(way)
        for name, *rest in phases:
            out[way][name] = {**rates[way][name], "kernels": {} if is_recorded else profile(llm, lambda: work(name, *rest))}
    json.dump(out, open(args.child, "w"))


def turn(args, build, environment, prefix):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        words = [*prefix, sys.executable, __file__, str(build), "--child", file.name, "--layers", str(args.layers),
                 "--tensor-parallel", str(args.tensor_parallel), "--rounds", str(args.rounds), "--tokens", str(args.tokens), "--batches", ",".join(map(str, args.batches)),
                 "--contexts", ",".join(map(str, args.contexts)), "--memory", str(args.memory),
                 *(["--experts", str(args.experts)] if args.experts else ["--model", args.model]), *(["--eager"] if args.eager else []),
                 *engine_turns.option_words(args.options), *(["--record"] if prefix and args.record else [])]
        subprocess.run(words, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def shares_of(times):
    total = sum(times.values()) or 1
    return {name: us / total for name, us in times.items()}


def compare_recording(args, build, folders):
    """Of default mode: what runs in graphs is decoding, of the first batch size alone."""
    args.batches, args.contexts = args.batches[:1], []
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work, "vllm.jsonl")
        base = turn(args, build, {}, [])["apart"]
        recorded = turn(args, build, {"FIBSHIM_STATS_DIR": work},
                        [build / "bin/fibshim", "record", "-o", str(path), "--times", "cupti", "-c", ":".join(map(str, folders)), "--"])["apart"]
        again = turn(args, build, {}, [])["apart"]
        print(subprocess.run([build / "bin/fibshim", "record", "--summary", path, "-n", "15"], stdout=subprocess.PIPE, text=True).stdout)
        kernels = [json.loads(line) for line in path.read_text().splitlines()][1:]
    phase = phase_of(args.batches[0])
    for name in (phase, "prefill"):
        print(f"{name}: {base[name]['tokens_per_s']:.0f} and {again[name]['tokens_per_s']:.0f} tokens/s without, "
              f"{recorded[name]['tokens_per_s']:.0f} recorded")
    times = lambda one: sum(times["sum_us"] for times in (one["warm_up"], one["times"]) if times)
    ran = collections.Counter()
    for kernel in kernels:
        ran[normal(kernel["demangled"])] += sum(times(one) for one in kernel["runs"] if one["in_graph"])
    shares = [shares_of(ran)]
    for side in (base, again):
        profiled = collections.Counter()
        for name, us in side[phase]["kernels"].items():
            if ran[normal(name)]:
                profiled[normal(name)] += us
        shares.append(shares_of(profiled))
    problems = [] if shares[1] else ["nothing ran in graphs"]
    for name in sorted(shares[1], key=shares[1].get, reverse=True):
        mine, *profiled = (one.get(name, 0) for one in shares)
        its = statistics.mean(profiled)
        print(f"measured: {mine:7.2%} recorded {profiled[0]:7.2%}, {profiled[1]:.2%} profiled  {name[:80]}")
        # Two processes need not agree themselves.
        if not min(profiled) <= mine <= max(profiled) and abs(mine - its) > max(0.03 * its, 0.001):
            problems.append(f"{mine:.2%} recorded, {profiled[0]:.2%}, {profiled[1]:.2%} profiled: {name[:80]}")
    print(f"{'FAIL' if problems else 'PASS'} vllm.default.record: shares of decoding as the profiler tells them" +
          (f": {problems[0]}" if problems else ""))
    return 1 if problems else 0


def kernel_libraries():
    """The installed vLLM's, as tests/engines/engines.table has them."""
    found = importlib.util.find_spec("vllm")
    return [path for place in (found.submodule_search_locations if found else ()) for glob in ("_*C*.so", "vllm_flash_attn/*.so")
            for path in sorted(pathlib.Path(place).glob(glob))]


def run_mode(args, build, folders, mode):
    """What the turns of a mode said, and the counts of its launches."""
    with tempfile.TemporaryDirectory() as stats:
        result = turn(args, build, {"FIBSHIM_STATS_DIR": stats, "FIBSHIM_JOB": "engine_vllm"},
                      [build / "bin/fibshim", "run", "-c", ":".join(map(str, folders)), "--"])
        text = subprocess.run([build / "bin/fibshim", "stats", "--json", "--dir", stats], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        if args.kernels:
            for by in ("definition", "pattern"):
                subprocess.run([build / "bin/fibshim", "stats", "--by", by, "--dir", stats], check=True)
        if args.tensor_parallel > 1:
            done = subprocess.run([build / "bin/fibshim", "stats", "--diff", "--dir", stats], stdout=subprocess.PIPE, text=True)
            print(f"{'FAIL' if done.returncode else 'PASS'} vllm.{mode}.ranks: run the same kernels" + (f":\n{done.stdout}" if done.returncode else ""))
    if args.apart:
        result.update(turn(args, build, {}, []))
    return result, json.loads(text)["totals"]


def report_modes(args, build, folders, ours, known):
    """Runs the modes and prints what they do, and README's table."""
    modes = {}
    for args.eager in (False, True) if args.both else (args.eager,):
        mode = "eager" if args.eager else "default"
        modes[mode] = run_mode(args, build, folders, mode)
    between_own = distances_of(modes["default"][0]["--off"], modes["eager"][0]["--off"]) if args.both else None
    rows = [row for mode, (result, totals) in modes.items()
            for row in engine_turns.report("vllm", mode, result, totals, ours, known, phase_of(args.batches[0], *args.contexts[:1]), args.layers,
                                           args.apart, args.kernels, between_own)]
    print(shares.readme_head(**next(iter(modes.values()))[0]["about"]), *rows, sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--eager", action="store_true")
    modes.add_argument("--both", action="store_true", help="default mode, then eager")
    parser.add_argument("--layers", type=int, default=8)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--model", choices=engine_models.MODELS, default="llama")
    kinds.add_argument("--experts", type=int, default=0)
    parser.add_argument("--tensor-parallel", type=int, default=1, help="processes with a GPU each")
    parser.add_argument("--rounds", type=int, default=4, help="at least 2")
    parser.add_argument("--tokens", type=int, default=128, help="decoded by each sequence in a turn, without --contexts")
    numbers = lambda text: [int(n) for n in text.split(",") if n]
    parser.add_argument("--batches", type=numbers, default=[1, 32])
    parser.add_argument("--contexts", type=numbers, default=[], help="lengths at which sequences end, 81 to 4096")
    parser.add_argument("--memory", type=float, help="vLLM's share of the GPU's memory; 0.3, with --contexts 0.5")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="print the times of the N longest")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--record", action="store_true", help="record in default mode, and compare with the profiler")
    engine_turns.add_option(parser)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not all(81 <= context <= engine_models.LLAMA["max_position_embeddings"] for context in args.contexts):
        parser.error("--contexts: lengths from 81 to 4096")
    args.memory = args.memory or (0.5 if args.contexts else 0.3)
    if args.child:
        return child(args)
    build = args.build.resolve()
    folders = [build / "config" / name for name in ("vllm", "machete", "cublas", "flash_attention")]
    if args.record:
        return compare_recording(args, build, folders)
    read = lambda pattern: [json.loads(path.read_text()) for folder in folders for path in folder.glob(pattern)]
    ours = {solution["launch"]["kernel"] for solution in read("solutions/**/*.json")}
    known = is_known(build / "bin/fibshim", folders, kernel_libraries())
    report_modes(args, build, folders, ours, known)
    return 0


if __name__ == "__main__":
    sys.exit(main())
