#!/usr/bin/env python3
"""Decoding under hosts other than vLLM, without and with the folders pytorch and cublas: how many matrix products are replaced,
what is gained, how exact the result is.

  tests/gpu/decode_hosts.py [-b BATCH,BATCH...] [-t SECONDS] [HOST...]

    transformers  its LlamaForCausalLM, eager, 4 layers of Llama 3 8B's shape and its logits
    jax           the products of one such layer and the logits, fused as vLLM has them, in one jitted function
    jax-cublas    the same with XLA's own Triton products switched off

Weights are random and bf16. A host is one process, moved by `fibshim swap --off` and `--on` between samples. Results are compared
with those of the same weights in float32: they must not be further from them than the host's own.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from counters import BUILD, FIBSHIM, SHIM, read_counts, unshimmed_environment
from report import Report

HIDDEN, INNER, VOCABULARY, LAYERS = 4096, 14336, 128256, 4
STEPS, SAMPLES = 32, 5
# Both distances from float32 are sums of the same many roundings, drawn anew.
DISTANCE_SLACK = 1.05
SIDES = ("--off", "--on")


def move(side):
    subprocess.run([FIBSHIM, "swap", side, "--pid", str(os.getpid()), "--wait"], check=True, stdout=subprocess.DEVNULL,
                   env=unshimmed_environment())


def sides_of(step, wait, batch):
    """By side: rows a second, and the result."""
    rates, results = {side: [] for side in SIDES}, {}
    for turn in range(SAMPLES):
        for side in SIDES if turn % 2 else reversed(SIDES):
            move(side)
            results[side] = step()
            step()
            wait()
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            wait()
            rates[side].append(batch * STEPS / (time.perf_counter() - begin))
    return {side: statistics.median(rates[side]) for side in SIDES}, results


def run_transformers(batches):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=32, num_key_value_heads=8,
                         num_hidden_layers=LAYERS, vocab_size=VOCABULARY, max_position_embeddings=2048)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.02)

    def step_of(batch):
        torch.manual_seed(batch)
        tokens = torch.randint(0, VOCABULARY, (batch, 65), device="cuda")
        cache = model(tokens[:, :64], use_cache=True).past_key_values

        def step():
            cache.crop(64)
            return model(tokens[:, 64:], past_key_values=cache, use_cache=True).logits
        return step

    measured = {batch: sides_of(step_of(batch), torch.cuda.synchronize, batch) for batch in batches}
    model.float()
    exact = {batch: step_of(batch)() for batch in batches}
    distance = lambda x, y: ((x.float() - y).pow(2).mean() / y.pow(2).mean()).sqrt().item()
    return {batch: {"rate": rates, "distance": {side: distance(result, exact[batch]) for side, result in results.items()}}
            for batch, (rates, results) in measured.items()}


def run_jax(batches):
    import jax
    import jax.numpy as jnp
    sizes = ((6144, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER), (VOCABULARY, HIDDEN))
    keys = jax.random.split(jax.random.key(0), len(sizes))
    weights = [0.02 * jax.random.normal(key, size, jnp.bfloat16) for key, size in zip(keys, sizes)]
    multiply = lambda x, w: jax.lax.dot_general(x, w, (((1,), (1,)), ((), ())))

    def layer(x, weights):
        qkv, o, gate_up, down, logits = weights
        y = multiply(x, qkv)[:, :HIDDEN]
        y = multiply(y, o)
        y = multiply(y, gate_up)
        y = multiply(y[:, :INNER] * y[:, INNER:], down)
        return multiply(y, logits)

    function = jax.jit(layer)
    every_x = jax.random.normal(jax.random.key(1), (max(batches), HIDDEN), jnp.bfloat16)
    with jax.default_matmul_precision("highest"):  # compiled once for all batches
        exact = jax.jit(lambda x, weights: layer(x.astype(jnp.float32), [w.astype(jnp.float32) for w in weights]))(every_x, weights)
    distance = lambda x, y: float(jnp.sqrt(jnp.mean((x.astype(jnp.float32) - y) ** 2) / jnp.mean(y ** 2)))
    out = {}
    for batch in batches:
        x = every_x[:batch]
        last = []

        def step():
            last[:] = [function(x, weights)]
            return last[0]
        rates, results = sides_of(step, lambda: last[0].block_until_ready(), batch)
        out[batch] = {"rate": rates, "distance": {side: distance(result, exact[:batch]) for side, result in results.items()}}
    return out


HOSTS = {"transformers": (run_transformers, {}),
         "jax": (run_jax, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
         "jax-cublas": (run_jax, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"})}


def run_child(host, batches, stats, seconds):
    folders = ":".join(os.path.join(BUILD, "config", name) for name in ("pytorch", "cublas"))
    environment = {**unshimmed_environment(), **HOSTS[host][1], "LD_PRELOAD": SHIM, "FIBSHIM_CONFIG": folders, "FIBSHIM_STATS_DIR": stats}
    done = subprocess.run([sys.executable, __file__, "--child", host, "-b", ",".join(map(str, batches))], env=environment,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return {int(batch): values for batch, values in json.loads(done.stdout.splitlines()[-1]).items()}


def judge(report, host, batches, seconds):
    values = {}
    begin = time.perf_counter()
    with report.phase(f"{host}: products are replaced, without an error") as problems, tempfile.TemporaryDirectory() as stats:
        values = run_child(host, batches, stats, seconds)
        counts = read_counts(stats)
        for definition in sorted({definition for definition, _ in counts if definition}):
            print(f"measured: {host}: {definition}:",
                  ", ".join(f"{count:,} {outcome}" for (name, outcome), count in sorted(counts.items()) if name == definition))
        hits = sum(count for (_, outcome), count in counts.items() if outcome == "hit")
        print(f"measured: {host}: {hits:,} hits in all, {counts.untracked:,} launches that no pattern knows, "
              f"{time.perf_counter() - begin:.0f} s")
        if hits == 0:
            problems.append("no hit")
        problems += [f"{count} {outcome} of {definition}" for (definition, outcome), count in counts.items()
                     if "error" in outcome and count]
    for batch, value in values.items():
        (off, on), (own, ours) = ([value[what][side] for side in SIDES] for what in ("rate", "distance"))
        print(f"measured: {host}: batch {batch}: {off:,.0f} rows/s without, {on:,.0f} with (x{on / off:.2f}); "
              f"distance from float32 {own:.6f} without, {ours:.6f} with")
        report.check(f"{host}: batch {batch}: as near to float32", [] if ours <= DISTANCE_SLACK * own
                     else [f"{ours:.6f}, the host's own {own:.6f}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hosts", nargs="*", help=", ".join(HOSTS))
    parser.add_argument("-t", "--seconds", type=float, default=100, help="for all hosts together")
    parser.add_argument("-b", "--batches", default="1,8", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--child", choices=HOSTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(HOSTS[options.child][0](options.batches)))
        return 0
    unknown = [name for name in options.hosts if name not in HOSTS]
    if unknown:
        parser.error(f"unknown host {unknown[0]}; there are {', '.join(HOSTS)}")
    report = Report("decode_hosts")
    end = time.perf_counter() + options.seconds
    for host in options.hosts or HOSTS:
        judge(report, host, options.batches, max(1, end - time.perf_counter()))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
