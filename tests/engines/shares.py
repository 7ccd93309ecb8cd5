"""What a profile of an engine says of the folders: whose kernels take how much of the GPU's time, and a row of README's table.

A profile: microseconds by the kernel's name, as PyTorch's profiler tells it. For tests/gpu/engine_vllm.py.
"""
import collections
import re

from families import family_of

# A folder for an engine knows all of these, of the model that is run.
WANTED = ("norm", "quantised norm", "activation", "RoPE", "KV write")
# Kernels that no pattern can know, by name, and why.
NOT_KNOWABLE = (
    (re.compile(r"triton_(?:red|per)_fused__to_copy_(?:add_)?embedding_(?:machete_mm_)?(?:mul_)?rms_norm_\d+"),
     "gathers the rows of the embedding, too, once a step: which of its five pointers is which stands in no recording"),
)
ROWS = 200  # characters of a kernel's name


def share(times, is_meant):
    total = sum(times.values())
    return sum(us for name, us in times.items() if is_meant(name)) / total if total else 0.0


def unknown_by_family(times, is_known):
    """Family -> kernel -> share of the time, of those that no pattern knows."""
    unknown = collections.defaultdict(dict)
    total = sum(times.values())
    for name, us in sorted(times.items(), key=lambda item: -item[1]):
        if not is_known(name):
            unknown[family_of(name) or "other"][name] = us / total if total else 0.0
    return unknown


def why_not_knowable(name):
    return next((why for symbol, why in NOT_KNOWABLE if symbol.fullmatch(name)), None)


def of_unknown(times, is_known):
    """Lines about the kernels of the wanted families that are not known, and those of them that should be."""
    lines, problems = [], []
    for family, kernels in unknown_by_family(times, is_known).items():
        lines.append(f"{family}: {sum(kernels.values()):.1%} of GPU time not known, {len(kernels)} kernels")
        for name, part in kernels.items() if family in WANTED else ():
            why = why_not_knowable(name)
            lines.append(f"  {part:.2%} {name[:ROWS]}" + (f": {why}" if why else ""))
            if not why:
                problems.append(f"{family}: {part:.2%} of GPU time: {name[:ROWS]}")
    return lines, problems


def percent(part):
    return f"{100 * part:.2g} %" if part < 0.1 else f"{100 * part:.0f} %"


HOW = {"default": "default mode (torch.compile, CUDA graphs)", "eager": "`--enforce-eager`"}  # vLLM's


def readme_row(mode, layers, phase, known, replaced, off, on):
    """Of the table in README.md: `off` and `on` in tokens a second. A mode of another name is a model, in the engine's default mode."""
    how = HOW.get(mode, f"default mode (CUDA graphs), {mode}")
    return f"| {how}, {layers} layers: {phase} | {percent(known)}, {percent(replaced)} | {off:,.0f}, {on:,.0f} |"


def readme_head(engine, gpu, model="Llama with rows of 4096"):
    return f"| {engine}'s wheel, {model}, {gpu} | GPU time known, replaced | tokens/s off, on |\n|---|---|---|"
