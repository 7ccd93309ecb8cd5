#!/usr/bin/env python3
"""What a replay of vLLM's graphs costs the host and takes the GPU, without replacement and with it, by turns.

  build/bin/fibshim run -c build/config/vllm:build/config/cublas:build/config/flash_attention -- \\
    tests/gpu/engine_replay.py BUILD [--model NAME] [--layers N] [--rounds N] [--batches N,...]

With few layers the host decides how long a step takes: tokens per second then say little of the kernels.
"""
import argparse
import pathlib
import statistics
import time

import engine_models
from engine_turns import move
from engine_vllm import make_engine, prompts_of

TOKENS = 128


class Replays:
    """Times each replay of a graph while `way_of_timing` is "host" or "gpu"."""

    def __init__(self, torch):
        self.way_of_timing, self.host_us, self.events = None, [], []
        own = torch.cuda.CUDAGraph.replay

        def replay(graph):
            if self.way_of_timing == "gpu":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                own(graph)
                end.record()
                self.events.append((begin, end))
                return
            begun = time.perf_counter()
            own(graph)
            if self.way_of_timing == "host":
                self.host_us.append((time.perf_counter() - begun) * 1e6)

        torch.cuda.CUDAGraph.replay = replay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--model", choices=engine_models.MODELS, default="llama")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7, help="the first warms up")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    args = parser.parse_args()
    import torch
    from vllm import SamplingParams
    llm = make_engine(args.layers, model=engine_models.MODELS[args.model])
    replays = Replays(torch)

    def decode(batch, tokens=TOKENS):
        begun = time.perf_counter()
        llm.generate(prompts_of(batch, 32), SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False), use_tqdm=False)
        return (time.perf_counter() - begun) * 1e3

    found = {}
    for turn in range(args.rounds):
        for way in ("--off", "--on") if turn % 2 else ("--on", "--off"):
            move(way, args.build)
            for batch in args.batches:
                decode(batch, 4)
                replays.host_us, replays.events = [], []
                replays.way_of_timing = "host"
                whole_ms = decode(batch)
                replays.way_of_timing = "gpu"
                decode(batch)
                replays.way_of_timing = None
                torch.cuda.synchronize()
                gpu_us = [begin.elapsed_time(end) * 1e3 for begin, end in replays.events]
                if turn > 0:
                    found.setdefault((batch, way), []).append((whole_ms, statistics.median(replays.host_us), statistics.median(gpu_us)))
    for (batch, way), turns in sorted(found.items()):
        told = [f"{statistics.median(one):.1f} ({min(one):.1f} to {max(one):.1f})" for one in zip(*turns)]
        print(f"batch {batch}, {way[2:]}: {TOKENS} tokens {told[0]} ms; a replay {told[1]} us of the host, {told[2]} of the GPU")


if __name__ == "__main__":
    main()
