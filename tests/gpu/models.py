#!/usr/bin/env python3
"""Whole models, unchanged, without and with the shim by turns: the same tokens, every norm a hit, tokens
per second.

    models.py [-r ROUNDS] [-n TOKENS] [MODEL...]

    opt   transformers' OPTForCausalLM with the shape of OPT-6.7B (hidden 4096), generating greedily
    rms   a PyTorch model with F.rms_norm and silu * mul (overhead_decode.py), decoding greedily

Weights are random and bf16. Logits are compared with those of the same model in float32: a replaced norm
may round otherwise, but must not be further from them than PyTorch's own.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from counters import BUILD, SHIM, read_counts, unshimmed_environment
from report import Report

PROMPT = 32
BATCH = 8
SAMPLES = 3
# Both distances from float32 are sums of the same many roundings, drawn anew.
DISTANCE_SLACK = 1.05


class Opt:
    """A generation is one call of transformers' own generate()."""

    def __init__(self, torch):
        from transformers import OPTConfig, OPTForCausalLM
        config = OPTConfig(hidden_size=4096, ffn_dim=16384, num_attention_heads=32, num_hidden_layers=32,
                           vocab_size=50272, max_position_embeddings=2048, word_embed_proj_dim=4096)
        with torch.device("meta"):
            model = OPTForCausalLM(config).to(torch.bfloat16)
        model.to_empty(device="cuda").eval()
        model.tie_weights()
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            parameter.data.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.02)
        self.torch, self.model = torch, model
        self.prompt = torch.randint(4, 50272, (BATCH, PROMPT), device="cuda")
        self.norms = sum(isinstance(module, torch.nn.LayerNorm) for module in model.modules())
        self.forwards = 0
        self.counted = 0
        model.register_forward_hook(self.count_forward)

    def count_forward(self, *_):
        self.forwards += 1

    def count_norms(self):
        """How many norms one forward executes, seen at the modules."""
        def count(*_):
            self.counted += 1
        hooks = [module.register_forward_hook(count) for module in self.model.modules()
                 if isinstance(module, self.torch.nn.LayerNorm)]
        self.model(self.prompt)
        for hook in hooks:
            hook.remove()
        return self.counted

    def generate(self, tokens):
        made = self.model.generate(self.prompt, attention_mask=self.torch.ones_like(self.prompt), do_sample=False,
                                   min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=1)
        return made[:, PROMPT:].flatten().tolist(), BATCH * tokens

    def logits(self):
        return self.model(self.prompt).logits.float()

    def to_float(self):
        self.model.float()


class RmsNormAndSilu:
    """The norms of a step are called by name: two a layer and one at the end."""

    def __init__(self, torch):
        import overhead_decode
        self.torch, self.own = torch, overhead_decode
        self.model = overhead_decode.Model(overhead_decode.MLP_WIDTHS["gpu_bound"])
        self.forwards = 0
        self.norms = 2 * overhead_decode.LAYERS + 1

    def count_norms(self):
        functional = self.own.F
        plain, counted = functional.rms_norm, []

        def rms_norm(*arguments):
            counted.append(1)
            return plain(*arguments)
        functional.rms_norm = rms_norm
        self.step()
        functional.rms_norm = plain
        return len(counted)

    def step(self):
        self.model.step()
        self.forwards += 1

    def restart(self):
        self.model.token.zero_()
        self.model.position.zero_()
        for layer in self.model.layers:
            layer.keys.zero_()
            layer.values.zero_()

    def generate(self, tokens):
        self.restart()
        made = []
        for _ in range(tokens):
            self.step()
            made.append(self.model.token.clone())
        return self.torch.cat(made).tolist(), tokens

    def logits(self):
        self.restart()
        self.step()
        return self.model.logits.float()

    def to_float(self):
        for owner in (self.model, *self.model.layers):
            for name, value in vars(owner).items():
                if getattr(value, "dtype", None) == self.torch.bfloat16:
                    setattr(owner, name, value.float())


MODELS = {"opt": (Opt, "layernorm_h4096"), "rms": (RmsNormAndSilu, "rmsnorm_h4096")}


def child(name, tokens):
    """One process: prints what it generated, how fast, and how many norms ran in bf16."""
    import torch
    with torch.no_grad():
        model = MODELS[name][0](torch)
        # This thread alone stays where it is; those that the driver made have the rest.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        norms = model.count_norms()
        model.generate(4)
        rates = []
        for _ in range(SAMPLES):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            made, count = model.generate(tokens)
            torch.cuda.synchronize()
            rates.append(count / (time.perf_counter() - begin))
        logits = model.logits()
        executed = model.forwards * model.norms
        model.to_float()
        exact = model.logits()
        distance = ((logits - exact).pow(2).mean() / exact.pow(2).mean()).sqrt().item()
    print(json.dumps({"tokens": made, "rate": statistics.median(rates), "distance": distance, "norms": norms,
                      "declared": model.norms, "executed": executed}))


def run_child(name, tokens, stats):
    environment = unshimmed_environment()
    if stats is not None:
        environment.update(LD_PRELOAD=SHIM, FIBSHIM_CONFIG=os.path.join(BUILD, "config", "pytorch"),
                           FIBSHIM_STATS_DIR=stats)
    done = subprocess.run([sys.executable, __file__, "--child", name, "-n", str(tokens)], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def judge(report, name, tokens, rounds):
    definition = MODELS[name][1]
    results = {False: [], True: []}
    with report.phase(f"{name}: every norm is a hit") as problems:
        for turn in range(rounds):
            for is_shimmed in (False, True) if turn % 2 == 0 else (True, False):
                with tempfile.TemporaryDirectory() as stats:
                    result = run_child(name, tokens, stats if is_shimmed else None)
                    results[is_shimmed].append(result)
                    if not is_shimmed:
                        continue
                    counts = read_counts(stats)
                    hits = counts.pop((definition, "hit"), 0)
                    if result["norms"] != result["declared"]:
                        problems.append(f"a forward ran {result['norms']} norms, not {result['declared']}")
                    if hits != result["executed"]:
                        problems.append(f"{hits} hits, {result['executed']} norms executed")
                    if any(counts.values()):
                        problems.append(f"and {dict(counts)}")
    if not all(results.values()):
        return {}
    plain, shimmed = results[False][0], results[True][0]
    same = sum(a == b for a, b in zip(plain["tokens"], shimmed["tokens"]))
    with report.phase(f"{name}: the tokens are the same, or the logits as near to float32's") as problems:
        is_near = shimmed["distance"] <= DISTANCE_SLACK * plain["distance"]
        if same != len(plain["tokens"]) and not is_near:
            problems.append(f"{same} of {len(plain['tokens'])} tokens are the same, and the logits' distance from "
                            f"float32 is {shimmed['distance']:.5f} against {plain['distance']:.5f}")
    rates = {key: statistics.median(one["rate"] for one in value) for key, value in results.items()}
    print(f"measured: {name}: {rates[False]:.1f} tokens/s without the shim, {rates[True]:.1f} with it "
          f"({rates[True] / rates[False]:.3f}x); {shimmed['executed']} norms executed and hit; {same} of "
          f"{len(plain['tokens'])} tokens the same; distance from float32 {plain['distance']:.6f} without, "
          f"{shimmed['distance']:.6f} with")
    return {"without": rates[False], "with": rates[True], "norms": shimmed["executed"], "same_tokens": same,
            "tokens": len(plain["tokens"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("-r", "--rounds", type=int, default=2, help="processes of each kind")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens of a generation")
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; there are {', '.join(MODELS)}")
    if options.child:
        return child(options.child, options.tokens)
    report = Report("models")
    measured = {name: judge(report, name, options.tokens, options.rounds) for name in options.models or MODELS}
    return report.finish(tokens_per_s=measured)


if __name__ == "__main__":
    sys.exit(main())
