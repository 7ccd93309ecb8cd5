#!/usr/bin/env python3
"""Greedy decoding at batch 1 with a 32-layer model of random weights: tokens per second, eager and
from a CUDA graph. One JSON line per process; overhead.sh compares processes with and without the shim.

    overhead_decode.py LABEL SAMPLES

Under libswitch.so and the shim, each sample has a second beside it whose launches go past the shim,
before or after it by turns; the loss is the median of what each pair lost. In the first pairs both
sides go past it: what those lose is noise.

bf16, hidden 4096, 32 heads, RMSNorm twice a layer and at the end, a KV cache of 256 positions. The
width of the MLP decides what a token waits for: 14336, as in 8B models, keeps the GPU busy; with 1024 the
thread that launches is the bottleneck in eager mode, so that whatever a launch costs more shows in
full.
"""
import ctypes
import gc
import hashlib
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, POSITIONS, VOCABULARY = 32, 4096, 32, 256, 32000
MLP_WIDTHS = {"gpu_bound": 14336, "cpu_bound": 1024}
TOKENS_PER_SAMPLE = 2
WARM_UP_TOKENS = 32
EPS = 1e-6


def random_weight(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(shape[-1] ** -0.5)


class Layer:
    def __init__(self, width):
        self.attention_norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.mlp_norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.qkv = random_weight(3 * HIDDEN, HIDDEN)
        self.attention_out = random_weight(HIDDEN, HIDDEN)
        self.gate_up = random_weight(2 * width, HIDDEN)
        self.down = random_weight(HIDDEN, width)
        self.keys = random_weight(1, HEADS, POSITIONS, HIDDEN // HEADS)
        self.values = random_weight(1, HEADS, POSITIONS, HIDDEN // HEADS)

    def __call__(self, x, position):
        normed = F.rms_norm(x, (HIDDEN,), self.attention_norm, EPS)
        q, k, v = F.linear(normed, self.qkv).view(3, 1, HEADS, 1, HIDDEN // HEADS)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + F.linear(attended.view(1, HIDDEN), self.attention_out)
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.mlp_norm, EPS), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Model:
    def __init__(self, width):
        torch.manual_seed(0)
        self.embedding = random_weight(VOCABULARY, HIDDEN)
        self.head = random_weight(VOCABULARY, HIDDEN)
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.layers = [Layer(width) for _ in range(LAYERS)]
        self.token = torch.zeros(1, device="cuda", dtype=torch.long)
        self.position = torch.zeros(1, device="cuda", dtype=torch.long)

    def step(self):
        """Replaces the token by the next one; nothing of it waits for the GPU."""
        x = F.embedding(self.token, self.embedding)
        for layer in self.layers:
            x = layer(x, self.position)
        self.logits = F.linear(F.rms_norm(x, (HIDDEN,), self.norm, EPS), self.head)
        torch.argmax(self.logits, -1, out=self.token)
        self.position.add_(1).remainder_(POSITIONS)


def tokens_per_s(step):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TOKENS_PER_SAMPLE):
        step()
    torch.cuda.synchronize()
    return TOKENS_PER_SAMPLE / (time.perf_counter() - begin)


def median_rate(step, samples):
    return statistics.median(tokens_per_s(step) for _ in range(samples))


def find_switch():
    """libswitch.so's variable, where that library is preloaded: 1 sends launches past the shim."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(None), "forwarder_is_direct")
    except ValueError:
        return None


def paired_loss(step, samples, switch, is_noise):
    losses = []
    for i in range(samples):
        rates = {}
        for is_direct in ((True, False) if i % 2 == 0 else (False, True)):
            switch.value = is_direct or is_noise
            rates[is_direct] = tokens_per_s(step)
        losses.append(1 - rates[False] / rates[True])
    switch.value = 0
    return statistics.median(losses)


def captured(model):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.step()
    return graph.replay


@torch.inference_mode()
def main():
    label, samples = sys.argv[1], int(sys.argv[2])
    switch = find_switch()
    gc.disable()
    out = {"preload": label}
    steps = 0
    for name, width in MLP_WIDTHS.items():
        model = Model(width)
        # This thread alone stays where it is; those that the driver made have the rest.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        produced = []
        for _ in range(WARM_UP_TOKENS):
            model.step()
            produced.append(model.token.item())
        steps += len(produced)
        out[name] = {"digest": hashlib.sha256(repr(produced).encode()).hexdigest()[:16]}
        if switch is None:
            out[name]["eager"] = median_rate(model.step, samples)
            out[name]["graph"] = median_rate(captured(model), samples)
            steps += TOKENS_PER_SAMPLE * samples + 1
        else:
            # Of the pairs, the half that goes through the shim.
            out[name]["noise"] = paired_loss(model.step, samples, switch, is_noise=True)
            out[name]["eager"] = paired_loss(model.step, samples, switch, is_noise=False)
            steps += TOKENS_PER_SAMPLE * samples
        del model
        torch.cuda.empty_cache()
    out["norms"] = steps * (2 * LAYERS + 1)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
