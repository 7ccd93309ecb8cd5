#!/usr/bin/env python3
"""Every solution of every ready folder on the GPU, against float64; and their times.

    kernels.py [--times FILE [--flashinfer CUBIN]] [FAMILY...]

`--times` also writes device times in a replayed graph, beside those of PyTorch's own kernels, as JSON. CUBIN
holds FlashInfer's kernels, for its times: tests/gpu/flashinfer_kernels.cu says how to make it.

A result is right when it is the nearest number of its type to the float64 result, up to the noise of fp32; where
the kernel that is replaced rounds on the way, so does the reference. Outputs are poisoned before each launch.
"""
import argparse
import glob
import json
import math
import os
import re
import sys

import torch
import torch.nn.functional as F

import kernel_times
from counters import BUILD
from report import Report
from solutions import load_all, load_folder

FOLDERS = ("pytorch", "flashinfer", "sglang", "vllm", "machete")
ROWS = (1, 77)
EPS = 1e-6
DTYPES = {"": torch.bfloat16, "_fp16": torch.float16, "_fp32": torch.float32}
FP32_NOISE = 2.0**-21


class Draw:
    """Inputs of one case: always alike, with rows of very different scale."""

    def __init__(self, seed, dtype):
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        self.dtype = dtype

    def normal(self, *shape, scale=1.0, offset=0.0):
        values = torch.randn(*shape, generator=self.generator, device="cuda") * scale + offset
        return values.to(self.dtype)

    def rows(self, rows, width):
        scale = torch.exp2(torch.empty(rows, 1, device="cuda").uniform_(-8, 4, generator=self.generator))
        return (torch.randn(rows, width, generator=self.generator, device="cuda") * scale).to(self.dtype)


def poisoned(rows, width, dtype):
    return torch.full((rows, width * dtype.itemsize), 0xFF, dtype=torch.uint8, device="cuda").view(dtype)


def spread(tensor, stride):
    """The same rows, `stride` elements apart; between them lies what nobody may touch."""
    base = torch.full((tensor.shape[0], stride), 7.0, device="cuda").to(tensor.dtype)
    base[:, :tensor.shape[1]] = tensor
    return base


def ulp_of(exact, dtype):
    """A unit in the last place of `dtype` at float64 values."""
    info = torch.finfo(dtype)
    tiny = 2.0**-6 if dtype == torch.float8_e4m3fn else info.tiny
    power_of_two = ((exact.abs().clamp_min(tiny).view(torch.int64) >> 52) << 52).view(torch.float64)
    return power_of_two * info.eps


def wrong(name, actual, exact, noise=0.0, ulps=0.5):
    """Why `actual` is not `exact` (float64) rounded to its dtype. `noise`: what fp32 may add, absolute."""
    if not torch.isfinite(actual.float()).all():
        return [f"{name}: {int((~torch.isfinite(actual.float())).sum())} elements are not finite"]
    error = (actual.double() - exact).abs()
    if actual.dtype == torch.float32:
        allowed = 8 * FP32_NOISE * exact.abs() + noise
    else:
        allowed = (ulps + 0.002) * ulp_of(exact, actual.dtype) + FP32_NOISE * exact.abs() + noise
    bad = error > allowed
    if not bad.any():
        return []
    worst = (error / ulp_of(exact, actual.dtype)).max().item()
    return [f"{name}: {int(bad.sum())} of {bad.numel()} elements, the worst {worst:.3f} ulp off"]


def wrong_rounded_twice(name, actual, expected, noise=0.0):
    """For results that were rounded on the way: fp32's noise may tip the first rounding, here and there."""
    difference = (actual.double() - expected.double()).abs() - noise
    bad = difference > 0
    problems = []
    if not torch.isfinite(actual.float()).all() or (difference > 2.01 * ulp_of(expected.double(), actual.dtype)).any():
        problems.append(f"{name}: an element is more than 2 ulp off")
    if bad.float().mean().item() > 0.01:
        problems.append(f"{name}: {bad.float().mean().item():.2%} of the elements differ")
    return problems


def reciprocal_root(squares64, eps):
    return (squares64.mean(-1, keepdim=True) + torch.tensor(eps).double().item()).rsqrt()


# ---- families. Each yields (what it is, a function that launches and returns the problems).


def rmsnorm(solution, dtype, size, rows, bias=0.0):
    draw = Draw(rows * 7 + size, dtype)
    x = draw.rows(rows, size)
    takes = solution.launch_block["arguments"]
    w = draw.normal(size, scale=0.5, offset=1.0 - bias) if "weight" in takes else torch.ones(size, dtype=dtype, device="cuda")
    r = reciprocal_root(x.double().pow(2), EPS)
    exact = x.double() * r * (w.double() + bias)
    if "rstd" in takes:
        y, rstd = poisoned(rows, size, dtype), poisoned(rows, 1, torch.float32)
        solution.launch({"hidden_states": x, "weight": w, "output": y, "rstd": rstd, "eps": EPS, "batch_size": rows,
                         "hidden_size": size})
        return wrong("output", y, exact) + wrong("rstd", rstd, r)
    plain = {"hidden_states": x, "weight": w, "eps": EPS, "weight_bias": bias, "rounds_before_weight": 0,
             "batch_size": rows, "num_heads": 1, "token_stride": size, "head_stride": 0,
             "output_token_stride": size, "output_head_stride": 0}
    y = poisoned(rows, size, dtype)
    solution.launch({**plain, "output": y})
    problems = wrong("output", y, exact)
    # Rows apart, and in place.
    apart = spread(x, size + 24)
    solution.launch({**plain, "hidden_states": apart, "output": apart, "token_stride": size + 24,
                     "output_token_stride": size + 24})
    problems += wrong("in place, rows apart", apart[:, :size].contiguous(), exact)
    if not (apart[:, size:] == 7).all():
        problems.append("in place, rows apart: wrote between rows")
    # Seven heads a token, tokens apart: as a slice of a projection.
    if rows % 7 == 0:
        tokens = spread(x.view(rows // 7, 7 * size), 9 * size)
        y = poisoned(rows, size, dtype)
        solution.launch({**plain, "hidden_states": tokens, "output": y, "num_heads": 7, "token_stride": 9 * size,
                         "head_stride": size, "output_token_stride": 7 * size, "output_head_stride": size})
        problems += wrong("heads", y, exact)
    if bias == 0 and "weight" in takes:
        y = poisoned(rows, size, dtype)
        solution.launch({**plain, "output": y, "rounds_before_weight": 1})
        rounded = (x.float() * r.float()).to(dtype)
        problems += wrong_rounded_twice("rounded before the weight", y, (rounded.float() * w.float()).to(dtype))
    return problems


def gemma_rmsnorm(solution, dtype, size, rows):
    return rmsnorm(solution, dtype, size, rows, bias=1.0)


def fused_add_rmsnorm(solution, dtype, size, rows, bias=0.0):
    draw = Draw(rows * 11 + size, dtype)
    x, residual = draw.rows(rows, size), draw.rows(rows, size)
    takes = solution.launch_block["arguments"]
    w = draw.normal(size, scale=0.5, offset=1.0 - bias) if "weight" in takes else torch.ones(size, dtype=dtype, device="cuda")
    sum64 = x.double() + residual.double()
    like_vllm = "weight_bias" not in takes
    problems = []
    for in_place, rounds in ((False, 0), (True, 1)) if like_vllm else ((False, 0), (True, 0)):
        stride = size + 16
        residual_stride = size if like_vllm else size + 8
        x_io, residual_io = spread(x, stride), spread(residual, residual_stride)
        y = x_io if in_place else spread(poisoned(rows, size, dtype), stride)
        z = residual_io if in_place else spread(poisoned(rows, size, dtype), residual_stride)
        solution.launch({"hidden_states": x_io, "residual": residual_io, "weight": w, "output": y, "eps": EPS,
                         "residual_output": z, "weight_bias": bias, "batch_size": rows, "input_stride": stride,
                         "residual_stride": residual_stride, "rounds_before_weight": rounds})
        y, z, between = y[:, :size].contiguous(), z[:, :size].contiguous(), (y[:, size:], z[:, size:])
        where = "in place" if in_place else "apart"
        problems += wrong(f"residual_output {where}", z, sum64)
        if any(not (part == 7).all() for part in between):
            problems.append(f"{where}: wrote between rows")
        if like_vllm:
            rounded_sum = (x.float() + residual.float()).to(dtype)
            r = reciprocal_root(rounded_sum.double().pow(2), EPS).float()
            normal = rounded_sum.float() * r
            normal = normal.to(dtype).float() if rounds else normal
            problems += wrong_rounded_twice(f"output {where}", y, (normal * w.float()).to(dtype))
        else:
            # The sum is fp32: it rounds where both are large and of unlike scale.
            noise = 2.0**-23 * (x.double().abs() + residual.double().abs())
            r = reciprocal_root(sum64.pow(2), EPS)
            exact = sum64 * r * (w.double() + bias)
            problems += wrong(f"output {where}", y, exact, noise * r * (w.double() + bias).abs())
    return problems


def gemma_fused_add_rmsnorm(solution, dtype, size, rows):
    return fused_add_rmsnorm(solution, dtype, size, rows, bias=1.0)


def rmsnorm_quant(solution, dtype, size, rows, has_residual=False):
    draw = Draw(rows * 13 + size, dtype)
    x, w = draw.rows(rows, size), draw.normal(size, scale=0.5, offset=1.0)
    residual = draw.rows(rows, size)
    scale = torch.full((), 0.0078125 if size % 3 else 0.03, dtype=torch.float32, device="cuda")  # some saturate
    y, z = poisoned(rows, size, torch.float8_e4m3fn), poisoned(rows, size, dtype)
    solution.launch({"hidden_states": x, "residual": residual, "weight": w, "scale": scale, "out": y,
                     "residual_output": z, "eps": EPS, "weight_bias": 0.0, "batch_size": rows, "input_stride": size,
                     "residual_stride": size, "output_stride": size})
    sum64 = x.double() + residual.double() if has_residual else x.double()
    exact = sum64 * reciprocal_root(sum64.pow(2), EPS) * w.double() / scale.double()
    problems = wrong("out", y, exact.clamp(-448, 448), 1e-5 * exact.abs())
    return problems + (wrong("residual_output", z, sum64) if has_residual else [])


def fused_add_rmsnorm_quant(solution, dtype, size, rows):
    return rmsnorm_quant(solution, dtype, size, rows, has_residual=True)


def then_quant(solution, dtype, size, rows):
    """A norm of a sum, or silu·mul, whose output is written and then quantised, with one scale or a scale for each token."""
    draw = Draw(rows * 59 + size, dtype)
    takes = solution.launch_block["arguments"]
    if "residual" in takes:
        x, residual, w = draw.rows(rows, size), draw.rows(rows, size), draw.normal(size, scale=0.5, offset=1.0)
        total = (x.float() + residual.float()).to(dtype)
        root = reciprocal_root(total.double().pow(2), EPS).float()
        expected, noise = (total.float() * root * w.float()).to(dtype), 0.0
        given = {"hidden_states": x, "residual": residual, "weight": w, "residual_output": poisoned(rows, size, dtype), "eps": EPS, "batch_size": rows}
    else:
        x = draw.normal(rows, size, scale=3.0)
        gate, up = x.float().chunk(2, -1)
        expected, noise = (F.silu(gate).to(dtype).float() * up).to(dtype), 2.0**-21 * (gate * up).abs().double()
        given = {"input": x, "num_tokens": rows, "hidden_size": size, "hidden_div_2": size // 2}
    y, quantized = poisoned(*expected.shape, dtype), poisoned(*expected.shape, torch.float8_e4m3fn)
    scale = torch.full((), 0.0078125 if size % 3 else 0.03, dtype=torch.float32, device="cuda")
    scales = torch.full((rows,), -1.0, dtype=torch.float32, device="cuda")
    solution.launch({**given, "output": y, "quantized": quantized, "scale": scale, "scales": scales})
    problems = wrong_rounded_twice("output", y, expected, noise)
    if "residual_output" in given and not torch.equal(given["residual_output"], total):
        problems.append("residual_output is not the rounded sum")
    divisor = scale.double()
    if "scales" in takes:
        divisor = (y.double().abs().amax(-1, keepdim=True) / 448).clamp_min(1 / (448 * 512))
        problems += wrong("scales", scales, divisor[:, 0])
    exact = y.double() / divisor
    return problems + wrong("quantized", quantized, exact.clamp(-448, 448), 1e-5 * exact.abs())


def quant(solution, dtype, size, rows):
    """Rows, a norm of a sum, or silu·mul, in fp8, with one scale or a scale for each row. Nothing is rounded before but what is kept as "normed"."""
    draw = Draw(rows * 61 + size, dtype)
    takes = solution.launch_block["arguments"]
    x, first, second, w = (*(draw.rows(rows, size) for _ in range(3)), draw.normal(size, scale=0.5, offset=1.0))
    given = {"input": x, "hidden_states": x, "first": first, "second": second, "weight": w, "eps": EPS, "batch_size": rows, "num_tokens": rows,
             "hidden_size": size, "hidden_div_2": size // 2}
    addends = [given[name].double() for name in ("hidden_states", "first", "second") if name in takes]
    total, noise = sum(addends), 2.0**-23 * sum(one.abs() for one in addends)
    y = total
    if "input" in takes:
        gate, up = x.double().chunk(2, -1)
        y, noise = F.silu(gate) * up, 0.0
    elif "weight" in takes:
        factor = reciprocal_root(total.pow(2), EPS) * w.double()
        y, noise = total * factor, noise * factor.abs()
    kept, normed = (poisoned(rows, size, dtype) for _ in range(2))
    quantized = poisoned(*y.shape, torch.float8_e4m3fn)
    scale = torch.full((), 0.0078125 if size % 3 else 0.03, dtype=torch.float32, device="cuda")  # some saturate
    scales = torch.full((rows,), -1.0, dtype=torch.float32, device="cuda")
    solution.launch({**given, "sum": kept, "normed": normed, "quantized": quantized, "scale": scale, "scales": scales})
    problems, divisor = [], scale.double()
    if "scales" in takes:
        divisor = (y.abs().amax(-1, keepdim=True) / 448).clamp_min(1 / (448 * 512))
        problems += wrong("scales", scales, divisor[:, 0])
        divisor = scales.double().unsqueeze(1)
    if "sum" in takes:
        problems += wrong("sum", kept, total, 2.0**-22 * sum(one.abs() for one in addends))
    if "normed" in takes:
        problems += wrong("normed", normed, y, noise)
        y, noise = normed.double(), 0.0
    exact = (y / divisor).clamp(-448, 448)
    return problems + wrong("quantized", quantized, exact, 1e-5 * exact.abs() + noise / divisor)


def quant_per_block(solution, dtype, size, rows):
    """Rows, a norm or silu·mul, in fp8 with a scale for each 128 elements, which lie column by column with a pitch. A norm is rounded before its weight
    and behind it; its noise is that of the root, which tips what lies between two numbers of bfloat16."""
    draw = Draw(rows * 67 + size, dtype)
    takes = solution.launch_block["arguments"]
    x, r, w = draw.rows(rows, size), draw.rows(rows, size), draw.normal(size, scale=0.5, offset=1.0)
    y, noise, outputs, problems = x.double(), 0.0, {}, []
    if "input" in takes:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    elif "weight" in takes:
        if "residual" in takes:
            y, outputs["residual_output"] = (x.float() + r.float()).double(), poisoned(rows, size, dtype)
            total = y
        y = (y * reciprocal_root(y.pow(2), EPS)).to(dtype).double() * w.double()
        y, noise = y.to(dtype).double(), 2.0**-6 * y.abs()
    blocks, pitch = y.shape[-1] // 128, -(-rows // 4) * 4
    by_columns = torch.full((blocks, pitch), -1.0, device="cuda")
    quantized = poisoned(*y.shape, torch.float8_e4m3fn)
    solution.launch({"input": x, "hidden_states": x, "residual": r, "weight": w, "eps": EPS if "weight" in takes else 1e-10, "batch_size": rows,
                     "num_tokens": rows, "num_blocks": blocks, "hidden_div_2": size // 2, "input_stride": size, "scale_row_stride": 1,
                     "scale_block_stride": pitch, "quantized": quantized, "scales": by_columns, **outputs})
    if (by_columns[:, rows:] != -1).any():
        problems.append("scales: written behind the rows")
    scales = by_columns[:, :rows].t().double()
    largest = y.unflatten(-1, (-1, 128)).abs().amax(-1)
    exact = (largest / 448).clamp_min(1e-10 / 448 if solution.definition.startswith("quant") else 1 / (448 * 512))
    if "_ue8m0" in solution.definition:
        exact = torch.exp2(torch.ceil(torch.log2(exact) - 1e-9))
    elif "_unbounded" in solution.definition:
        exact = torch.where(largest == 0, 1.0, exact)
    problems += wrong("scales", scales.float(), exact, noise=(2.0**-7 if "weight" in takes else 1e-6) * exact)
    if outputs:
        problems += wrong("residual_output", outputs["residual_output"], total)
    divisor = scales.repeat_interleave(128, -1)
    exact = (y / divisor).clamp(-448, 448)
    return problems + wrong("quantized", quantized, exact, 1e-5 * exact.abs() + noise / divisor)


def layernorm(solution, dtype, size, rows):
    draw = Draw(rows * 17 + size, dtype)
    x = (draw.rows(rows, size).float() + 3 * torch.randn(rows, 1, generator=draw.generator, device="cuda")).to(dtype)
    w, b = draw.normal(size, scale=0.5, offset=1.0), draw.normal(size)
    mean64 = x.double().mean(-1, keepdim=True)
    centered = x.double() - mean64
    rstd64 = reciprocal_root(centered.pow(2), EPS)
    problems = []
    for bias in (b, None):
        y, mean, rstd = (poisoned(rows, width, kind) for width, kind in
                         ((size, dtype), (1, torch.float32), (1, torch.float32)))
        solution.launch({"hidden_states": x, "weight": w, "bias": bias if bias is not None else 0, "output": y,
                         "mean": mean, "rstd": rstd, "eps": EPS, "batch_size": rows, "hidden_size": size})
        shift = bias.double() if bias is not None else torch.zeros(size, device="cuda", dtype=torch.float64)
        exact = centered * rstd64 * w.double() + shift
        # The mean is an fp32 number, and its last place counts where a row's values are close together.
        noise = 2.0**-23 * (mean64.abs() * rstd64 * w.double().abs() + exact.abs() + shift.abs()) * 2
        problems += wrong("output" + (" without bias" if bias is None else ""), y, exact, noise)
        problems += wrong("mean", mean, mean64, 2.0**-22 * x.double().abs().amax(-1, keepdim=True))
        problems += wrong("rstd", rstd, rstd64)
    return problems


def sum_rmsnorm(solution, dtype, size, rows):
    draw = Draw(rows * 37 + size, dtype)
    takes = solution.launch_block["arguments"]
    x, first, second = (draw.rows(rows, size) for _ in range(3))
    w = draw.normal(size, scale=0.5, offset=1.0)
    sum64 = x.double() + first.double() + (second.double() if "second" in takes else 0)
    # The first sum is rounded to fp32, and may cancel.
    noise = 2.0**-23 * (x.double().abs() + first.double().abs() + second.double().abs())
    r = reciprocal_root(sum64.pow(2), EPS)
    y, z, copied = (poisoned(rows, size, dtype) for _ in range(3))
    solution.launch({"hidden_states": x, "first": first, "second": second, "weight": w, "output": y, "sum": z, "copy": copied, "eps": EPS,
                     "batch_size": rows})
    problems = wrong("output", y, sum64 * r * w.double(), noise * r * w.double().abs())
    if "sum" in takes:
        problems += wrong("sum", z, sum64, noise)
    if "copy" in takes and not torch.equal(copied, y):
        problems.append("the copy is not as the output")
    return problems


def sandwich_rmsnorm(solution, dtype, size, rows):
    draw = Draw(rows * 41 + size, dtype)
    takes = solution.launch_block["arguments"]
    x, residual, earlier = (draw.rows(rows, size) for _ in range(3))
    inner, w, earlier_w = (draw.normal(size, scale=0.5) for _ in range(3))
    normed = lambda values, weight: values.double() * reciprocal_root(values.double().pow(2), EPS) * (1 + weight.double())
    squares = earlier.double().pow(2).sum(-1, keepdim=True).float() if "earlier" in takes else poisoned(rows, 1, torch.float32)
    outputs = {name: poisoned(rows, size, dtype) for name in ("output", "sum")} | {"total": poisoned(rows, size, torch.float32)}
    solution.launch({"hidden_states": x, "inner_weight": inner, "earlier": earlier, "squares": squares, "earlier_weight": earlier_w, "residual": residual,
                     "weight": w, "eps": EPS, "batch_size": rows, **outputs})
    terms = [normed(x, inner), residual.double(), *([normed(earlier, earlier_w)] if "earlier" in takes else [])]
    sum64, noise = sum(terms), 2.0**-20 * sum(term.abs() for term in terms)  # they are rounded to fp32, and may cancel
    r = reciprocal_root(sum64.pow(2), EPS)
    problems = wrong("output", outputs["output"], sum64 * r * (1 + w.double()), noise * r * (1 + w.double()).abs())
    problems += [problem for name in ("sum", "total") if name in takes for problem in wrong(name, outputs[name], sum64, noise)]
    return problems + ([] if "earlier" in takes else wrong("squares", squares, x.double().pow(2).sum(-1, keepdim=True)))


def splitk_reduce_sum_rmsnorm(solution, dtype, size, rows):
    draw = Draw(rows * 47 + size, dtype)
    takes = solution.launch_block["arguments"]
    parts = torch.stack([draw.rows(rows, size).float() for _ in range(numbers_of(solution.definition)["split"])])
    first, second = draw.rows(rows, size), draw.rows(rows, size) if "second" in takes else torch.zeros_like(parts[0], dtype=dtype)
    w = draw.normal(size, scale=0.5, offset=1.0)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    c = total.to(dtype)
    sum64 = c.double() + first.double() + second.double()
    noise = 2.0**-23 * (c.double().abs() + first.double().abs() + second.double().abs())
    r = reciprocal_root(sum64.pow(2), EPS)
    outputs = {name: poisoned(rows, size, dtype) for name in ("C", "output", "sum")}
    solution.launch({"partial_sums": parts, "first": first, "second": second, "weight": w, "eps": EPS, "batch_size": rows, **outputs})
    problems = wrong("output", outputs["output"], sum64 * r * w.double(), noise * r * w.double().abs())
    if "C" in takes and not torch.equal(outputs["C"], c):
        problems.append("the sum of the parts is not what it should be")
    if "sum" in takes:
        problems += wrong("sum", outputs["sum"], sum64, noise)
    return problems


def moe_sum(solution, dtype, size, rows):
    draw = Draw(rows * 53 + size, dtype)
    takes = solution.launch_block["arguments"]
    outputs_of_experts = torch.stack([draw.rows(rows, size) for _ in range(numbers_of(solution.definition)["top"])], 1)
    given = {name: draw.rows(rows, size) for name in ("first", "second", "residual") if name in takes}
    w = draw.normal(size, scale=0.5, offset=1.0)
    total = outputs_of_experts[:, 0].float()
    for k in range(1, outputs_of_experts.shape[1]):
        total = total + outputs_of_experts[:, k].float()
    c = total.to(dtype)
    terms = [c.double(), *(one.double() for one in given.values())]
    sum64, noise = sum(terms), 2.0**-23 * sum(term.abs() for term in terms)
    outputs = {name: poisoned(rows, size, dtype) for name in ("C", "output", "sum", "residual_output")}
    solution.launch({"expert_outputs": outputs_of_experts, **given, "weight": w, "eps": EPS, "weight_bias": 0.0, "batch_size": rows, **outputs})
    problems = [] if "C" not in takes or torch.equal(outputs["C"], c) else ["the sum of the experts' rows is not what it should be"]
    if "output" in takes:
        r = reciprocal_root(sum64.pow(2), EPS)
        problems += wrong("output", outputs["output"], sum64 * r * w.double(), noise * r * w.double().abs())
    return problems + [problem for name in ("sum", "residual_output") if name in takes for problem in wrong(name, outputs[name], sum64, noise)]


ACTIVATIONS = {
    "mul_and_silu": lambda x: x * torch.sigmoid(x),
    "silu_and_mul": lambda x: x * torch.sigmoid(x),
    "silu_and_mul_once": lambda x: x * torch.sigmoid(x),
    "gelu_and_mul": F.gelu,
    **dict.fromkeys(("gelu_tanh_and_mul", "gelu_tanh_and_mul_once"), lambda x: F.gelu(x, approximate="tanh")),
}


def gated_activation(solution, dtype, size, rows):
    draw = Draw(rows * 19 + size, dtype)
    function = ACTIVATIONS[re.sub(r"_h\d+.*", "", solution.definition)]
    problems = []
    for tokens in (rows, rows + 700) if size <= 16384 else (rows,):
        x = draw.normal(tokens, size, scale=3.0)
        x[0, :4] = torch.tensor([100.0, -100.0, 0.0, -30.0])
        y = poisoned(tokens, size // 2, dtype)
        solution.launch({"input": x, "output": y, "num_tokens": tokens, "hidden_size": size,
                         "hidden_div_2": size // 2})
        gate, up = x.double().chunk(2, -1)
        if solution.kernel_name.startswith("mul_and_"):
            gate, up = up, gate
        if solution.kernel_name.split("_")[-2] == "vllm":
            active = function(gate).to(dtype)
            expected = (active.float() * up.float()).to(dtype)
            # In its far tail GELU is a difference of nearly equal numbers.
            problems += wrong_rounded_twice(f"{tokens} tokens", y, expected, 2.0**-21 * (gate * up).abs())
        else:
            problems += wrong(f"{tokens} tokens", y, function(gate) * up, 2.0**-21 * (gate * up).abs())
    return problems


def silu_and_mul_clamp(solution, dtype, size, rows):
    draw = Draw(rows * 59 + size, dtype)
    problems = []
    for tokens in (rows, rows + 700) if size <= 16384 else (rows,):
        x = draw.normal(tokens, size, scale=3.0)
        x[0, :4] = torch.tensor([100.0, -100.0, 0.0, -30.0])
        # 0.25's, 0.20's, and a limit that is no number of the type
        for limit, alpha, beta, rounds in ((7.0, 1.702, 1.0, 0), (7.0, 1.0, 0.0, 1), (1.00097, 1.0, 0.0, 1), (1.00097, -0.5, -0.25, 0)):
            y = poisoned(tokens, size // 2, dtype)
            solution.launch({"input": x, "output": y, "num_tokens": tokens, "hidden_size": size, "hidden_div_2": size // 2,
                             "limit": limit, "alpha": alpha, "beta": beta, "rounds_limit": rounds})
            gate, up = x.float().chunk(2, -1)
            gate, up = gate.clamp(max=limit).to(dtype).double(), up.clamp(-limit, limit)
            up = (up.to(dtype).float() if rounds else up) + beta
            active = (gate * torch.sigmoid(alpha * gate)).to(dtype)
            problems += wrong_rounded_twice(f"{tokens} tokens, limit {limit}, alpha {alpha}", y, (active.float() * up).to(dtype))
    return problems


def softmax(solution, dtype, size, rows):
    draw = Draw(rows * 23 + size, dtype)
    x = draw.normal(rows, size, scale=4.0)
    if rows > 2:
        x[1, 5:] = -math.inf  # masked tokens
        x[2] = 3.0
    y = poisoned(rows, size, dtype)
    solution.launch({"logits": x, "probs": y, "batch_size": rows, "vocab_size": size})
    exact = torch.softmax(x.double(), -1)
    distance = (x.double() - x.double().amax(-1, keepdim=True)).abs().nan_to_num(posinf=0)
    return wrong("probs", y, exact, exact * (1e-6 + 2.0**-22 * distance))


def rope_cos_sin_cache(solution, dtype, size, rows):
    draw = Draw(rows * 29 + size, dtype)
    q_heads, k_heads, positions_count = 33, 5, 4096
    q, k = draw.normal(rows, q_heads * size), draw.normal(rows, k_heads * size)
    angle = torch.rand(positions_count, size // 2, generator=draw.generator, device="cuda", dtype=torch.float64) * 6.28
    cache = torch.cat([angle.cos(), angle.sin()], -1).float()
    positions = torch.randint(positions_count, (rows,), generator=draw.generator, device="cuda")
    cos, sin = cache.double()[positions].unsqueeze(1).chunk(2, -1)

    def rotated(flat):
        x, y = flat.double().view(rows, -1, size).chunk(2, -1)
        noise = 2.0**-22 * torch.cat([x.abs() + y.abs()] * 2, -1)
        return torch.cat([x * cos - y * sin, y * cos + x * sin], -1).view(rows, -1), noise.reshape(rows, -1)

    if "_cache16" in solution.definition:
        cache = cache.to(dtype)
        cos, sin = cache.double()[positions].unsqueeze(1).chunk(2, -1)
    given = positions.to(torch.int64 if "_pos64" in solution.definition else torch.int32)
    problems = []
    for in_place in (False, True):
        stride = (q_heads + k_heads) * size
        both = torch.cat([q, k], -1).contiguous()  # as a slice of one projection
        q_in, k_in = both[:, :q_heads * size], both[:, q_heads * size:]
        q_out = q_in if in_place else poisoned(rows, q_heads * size, dtype)
        k_out = k_in if in_place else poisoned(rows, k_heads * size, dtype)
        strides = {f"{name}_head_stride": size for name in ("query", "key", "query_out", "key_out")}
        strides |= {"query_token_stride": stride, "key_token_stride": stride,
                    "query_out_token_stride": q_out.stride(0), "key_out_token_stride": k_out.stride(0)}
        solution.launch({"query": q_in, "key": k_in, "query_out": q_out, "key_out": k_out, "cos_sin_cache": cache,
                         "positions": given, "num_q_heads": q_heads, "num_k_heads": k_heads, "nnz": rows, **strides})
        where = "in place" if in_place else "apart"
        for name, out, flat in (("query_out", q_out, q), ("key_out", k_out, k)):
            exact, noise = rotated(flat)
            problems += wrong(f"{name} {where}", out.contiguous(), exact, noise)
    return problems


def rope_slice(solution, dtype, size, rows):
    shape = numbers_of(solution.definition)
    row, first, heads = shape["r"], shape["o"], shape["n"]
    draw = Draw(rows * 31 + row + first, dtype)
    problems = []
    for tokens in (rows, rows + 1024):
        qkv = draw.normal(tokens, row)
        cache, positions = draw.normal(4096, size), torch.randint(4096, (tokens,), generator=draw.generator, device="cuda")
        y = poisoned(tokens, heads * size, dtype)
        solution.launch({"qkv": qkv, "output": y, "cos_sin_cache": cache, "positions": positions, "row_stride": row,
                         "first": first, "head_count": heads, "nnz": tokens})
        cos, sin = cache.double()[positions].unsqueeze(1).chunk(2, -1)
        a, b = qkv[:, first:first + heads * size].double().view(tokens, heads, size).chunk(2, -1)
        exact = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        noise = 2.0**-22 * torch.cat([(a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()], -1)
        problems += wrong(f"{tokens} tokens", y, exact.view(tokens, -1), noise.view(tokens, -1))
    return problems


class PagedCache:
    """Of keys and values, a page's one behind the other, or a head's, as vLLM has them since 0.32 at the latest."""
    PAGES, PAGE_SIZE = 19, 16

    def __init__(self, draw, heads, size, is_paired):
        shape = (self.PAGES, self.PAGE_SIZE, heads, 2, size) if is_paired else (self.PAGES, 2, self.PAGE_SIZE, heads, size)
        self.both = draw.normal(*shape)
        self.before = self.both.clone()
        self.axis = 3 if is_paired else 1
        self.slots = torch.randperm(self.PAGES * self.PAGE_SIZE, generator=draw.generator, device="cuda")
        self.keys, self.values = self.both.unbind(self.axis)

    def arguments(self):
        page, slot, head, _ = self.keys.stride()
        return {"key_cache_out": self.keys, "value_cache_out": self.values, "page_stride": page, "slot_stride": slot,
                "cached_head_stride": head, "page_size": self.PAGE_SIZE}

    def problems(self, slots, key, value):
        kept = slots >= 0
        for new, cache in zip((key, value), self.before.unbind(self.axis)):
            cache[slots[kept] // self.PAGE_SIZE, slots[kept] % self.PAGE_SIZE] = new[kept].view(-1, *cache.shape[2:])
        return [] if torch.equal(self.both, self.before) else ["the cache is not what it should be"]


def of_both_caches(test):
    return lambda *case: [problem for is_paired in (False, True) for problem in test(*case, is_paired)]


@of_both_caches
def append_paged_kv_cache_slots(solution, dtype, size, rows, is_paired):
    heads = numbers_of(solution.definition)["kv"]
    draw = Draw(rows * 41 + heads, dtype)
    width = heads * size
    cache = PagedCache(draw, heads, size, is_paired)
    slots = cache.slots[:rows]
    slots[3::7] = -1
    tokens = draw.normal(rows, 5 * width)  # rows that hold more, as vLLM has them
    key, value = tokens[:, width:2 * width], tokens[:, 3 * width:4 * width]
    solution.launch({**cache.arguments(), "key": key, "value": value, "slot_mapping": slots, "key_stride": 5 * width, "value_stride": 5 * width,
                     "num_kv_heads": heads, "head_size": size, "elements": width, "num_tokens": rows})
    return cache.problems(slots, key, value)


class HeadsAndCache:
    """Rows of query, key and value heads, angles, and a paged cache to write to, as vLLM has them."""
    def __init__(self, solution, dtype, size, rows, is_paired=False):
        numbers = numbers_of(solution.definition)
        self.q_heads, self.kv_heads = numbers["q"], numbers["kv"]
        self.draw = draw = Draw(rows * 43 + self.q_heads, dtype)
        self.qkv = draw.rows(rows * (self.q_heads + 2 * self.kv_heads), size).view(rows, -1)
        split = self.qkv.split([heads * size for heads in (self.q_heads, self.kv_heads, self.kv_heads)], -1)
        self.q, self.k, self.v = (part.unflatten(-1, (-1, size)) for part in split)
        self.angles, self.positions = draw.normal(4096, size), torch.randint(4096, (rows,), generator=draw.generator, device="cuda")
        self.cache = PagedCache(draw, self.kv_heads, size, is_paired)
        self.slots = self.cache.slots[:rows]
        self.slots[3::7] = -1
        self.q_out, self.k_out = poisoned(rows, self.q_heads * size, dtype), poisoned(rows, self.kv_heads * size, dtype)

    def arguments(self):
        return {**self.cache.arguments(), "value": self.v, "cos_sin_cache": self.angles, "positions": self.positions, "slot_mapping": self.slots,
                "query_out": self.q_out, "key_out": self.k_out, "value_stride": self.qkv.stride(0),
                "num_q_heads": self.q_heads, "num_kv_heads": self.kv_heads, "num_tokens": len(self.qkv)}

    def rotated(self, heads):
        """In float64, and how large what is added up is."""
        cos, sin = self.angles.double()[self.positions].unsqueeze(1).chunk(2, -1)
        a, b = heads.double().chunk(2, -1)
        sizes = torch.cat([(a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).flatten(1), sizes.flatten(1)

    def cache_problems(self):
        return self.cache.problems(self.slots, self.k_out, self.v.flatten(1))


@of_both_caches
def qk_rmsnorm_rope_append(solution, dtype, size, rows, is_paired):
    case = HeadsAndCache(solution, dtype, size, rows, is_paired)
    weights = [case.draw.normal(size, scale=0.5, offset=1.0) for _ in range(2)]
    stride = case.qkv.stride(0)
    solution.launch({**case.arguments(), "query": case.q, "key": case.k, "query_weight": weights[0], "key_weight": weights[1],
                     "query_stride": stride, "key_stride": stride, "eps": EPS})
    problems = []
    for name, out, heads, weight in (("query_out", case.q_out, case.q, weights[0]), ("key_out", case.k_out, case.k, weights[1])):
        x = heads.double()
        normal = (x * reciprocal_root(x.pow(2), EPS) * weight.double()).to(dtype)
        a, b = normal.double().abs().chunk(2, -1)
        tipped = torch.cat([a + b] * 2, -1).flatten(1) * 2.0**-7  # by a rounding of the norm
        problems += wrong_rounded_twice(name, out, case.rotated(normal)[0].to(dtype), tipped)
    return problems + case.cache_problems()


@of_both_caches
def qk_rmsnorm_rope_once_append(solution, dtype, size, rows, is_paired):
    case = HeadsAndCache(solution, dtype, size, rows, is_paired)
    bias = float(solution.definition.startswith("gemma_"))
    weights = [case.draw.normal(size, scale=0.5, offset=1.0 - bias) for _ in range(2)]
    sums = [torch.full((rows, heads), float("nan"), device="cuda") for heads in (case.q_heads, case.kv_heads)]
    solution.launch({**case.arguments(), "qkv": case.qkv, "row_size": case.qkv.shape[1], "query_weight": weights[0], "key_weight": weights[1],
                     "query_sums": sums[0], "key_sums": sums[1], "eps": EPS})
    problems = []
    for name, out, heads, weight, of_squares in zip(("query_out", "key_out"), (case.q_out, case.k_out), (case.q, case.k), weights, sums):
        x = heads.double()
        exact, sizes = case.rotated(x * reciprocal_root(x.pow(2), EPS) * (weight.double() + bias))
        problems += wrong(name, out, exact, 2.0**-20 * sizes)
        if "_sums_" in solution.definition:
            problems += wrong(f"sums of {name}", of_squares, x.pow(2).sum(-1))
    return problems + case.cache_problems()


@of_both_caches
def rope_append(solution, dtype, size, rows, is_paired):
    case = HeadsAndCache(solution, dtype, size, rows, is_paired)
    if solution.definition.startswith("rope_append_float"):
        case.angles = case.angles.float() + 2.0**-12  # more than 16 bits have
    solution.launch({**case.arguments(), "qkv": case.qkv, "row_size": case.qkv.shape[1]})
    problems = []
    for name, out, heads in (("query_out", case.q_out, case.q), ("key_out", case.k_out, case.k)):
        exact, sizes = case.rotated(heads)
        problems += wrong(name, out, exact, 2.0**-22 * sizes)
    return problems + case.cache_problems()


def rope_store(solution, dtype, size, rows):
    """SGLang's, in place: of rows with norms of their heads, or without."""
    case = HeadsAndCache(solution, dtype, size, rows)
    has_norms = solution.definition.startswith("qk_rmsnorm")
    weights = [case.draw.normal(size, scale=0.5, offset=1.0) for _ in range(2)] if has_norms else []
    case.angles = case.angles.float() + 2.0**-12  # more than 16 bits have
    keys, values, *before = (cache.flatten(2).flatten(0, 1).clone() for cache in (case.cache.keys, case.cache.values) * 2)
    case.slots[2::7] = reserved = 5
    expected = reference_of("sglang", solution.definition)(case.qkv, *weights, case.angles, case.positions, keys.unflatten(-1, (-1, size)),
                                                           values.unflatten(-1, (-1, size)), case.slots, reserved)
    qkv = case.qkv.clone()
    solution.launch({**case.arguments(), "qkv_out": qkv, **dict(zip(("query_weight", "key_weight"), weights)), "slots": case.slots,
                     "key_cache_out": keys, "value_cache_out": values, "key_slot_stride": 2 * keys.stride(0),
                     "value_slot_stride": 2 * values.stride(0), "reserved_slot": reserved, "eps": EPS, "cos_sin_cache": case.angles})
    problems = []
    heads = qkv.view(rows, -1, size)
    for index, (name, part) in enumerate((("query", slice(0, case.q_heads)), ("key", slice(case.q_heads, case.q_heads + case.kv_heads)))):
        x = case.qkv.view(rows, -1, size)[:, part]
        if not has_norms:
            exact, sizes = case.rotated(x)
            problems += wrong(name, heads[:, part].flatten(1), exact, 2.0**-22 * sizes)
            continue
        x = x.double()
        normal = (x * reciprocal_root(x.pow(2), EPS) * weights[index].double()).to(dtype)
        a, b = normal.double().abs().chunk(2, -1)
        tipped = torch.cat([a + b] * 2, -1).flatten(1) * 2.0**-7  # by a rounding of the norm
        problems += wrong_rounded_twice(name, heads[:, part].flatten(1), case.rotated(normal)[0].to(dtype), tipped)
    kept = (case.slots >= 0) & (case.slots != reserved)
    new = {"keys": heads[:, case.q_heads:case.q_heads + case.kv_heads], "values": case.v}
    for name, cache, wanted in zip(("keys", "values"), (keys, values), before):
        wanted[case.slots[kept]] = new[name].flatten(1)[kept]
        if not torch.equal(cache, wanted):
            problems.append(f"the cache of {name} is not what it should be")
    if (expected["qkv_out"].double() - qkv.double()).abs().max() > 0.1:
        problems.append("it is far from the definition's reference")
    return problems


def reference_of(folder, definition):
    """The definition's own, in Python."""
    path, = glob.glob(os.path.join(BUILD, "config", folder, "definitions", "**", f"{definition}.json"), recursive=True)
    with open(path) as file:
        record, names = json.load(file), {}
    exec(record["reference"], names)  # from this repository's own folders
    return lambda *inputs: dict(zip(record["outputs"], names["run"](*inputs), strict=True))


def moe_routing(solution, dtype, experts, rows):
    numbers, tokens = numbers_of(solution.definition), rows if "_topk_" in solution.definition else min(rows, 64)
    draw = Draw(rows * 53 + experts, dtype)
    logits = draw.normal(tokens, experts, scale=2.0)
    expected = reference_of("sglang" if "_by_logit_" in solution.definition else "vllm", solution.definition)(logits)
    outputs = {name: torch.full_like(value, -7) for name, value in expected.items()}
    solution.launch({"router_logits": logits, "cumsum": None, "is_padding": None, **outputs, "num_tokens": tokens, "block_size": numbers.get("b"),
                     "division": numbers["n"], "renormalize": numbers["n"], "max_num_tokens_padded": len(outputs.get("sorted_token_ids", ()))})
    problems = [f"{name} is not what it should be" for name, value in expected.items()
                if name != "topk_weights" and not torch.equal(outputs[name], value)]
    exact = torch.softmax(logits.double(), -1).gather(1, expected["topk_ids"].long())
    if numbers["n"]:
        exact = exact / exact.sum(-1, keepdim=True)
    return problems + wrong("topk_weights", outputs["topk_weights"], exact)


def moe_gemm(solution, dtype, experts, rows):
    numbers, is_sorted = numbers_of(solution.definition), "_each_" not in solution.definition
    n, k, topk = numbers["n"], numbers["k"], numbers["t"]
    tokens = min(rows, 64 if is_sorted else 4) * (8 // topk)
    draw = Draw(rows * 61 + n, dtype)
    x, weights = draw.normal(tokens, k), draw.normal(experts, n, k, scale=0.02)
    chosen = torch.randint(0, experts, (tokens * topk,), generator=draw.generator, device="cuda")
    product = torch.stack([weights[expert].double() @ x[i // topk].double() for i, expert in enumerate(chosen.tolist())])
    choices = len(chosen)
    outputs = {name: poisoned(choices, n, dtype) for name in ("gate_up", "output")}
    given = {"hidden_states": x, "weights": weights, "expert_ids": chosen.int(), "num_choices": choices, "topk": topk, "N": n}
    if is_sorted:
        block, places, blocks = numbers["b"], [], []
        for expert in chosen.unique().tolist():
            of_expert = (chosen == expert).nonzero()[:, 0].tolist()
            of_expert += [choices] * (-len(of_expert) % block)
            places += of_expert
            blocks += [expert] * (len(of_expert) // block)
        as_ids = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")
        given |= {"sorted_token_ids": as_ids(places), "expert_ids": as_ids(blocks), "num_tokens_post_pad": as_ids([len(places)]),
                  "num_places": len(places), "block_size": block}
    if "_weighted_" in solution.definition:
        given["topk_weights"] = torch.rand(choices, generator=draw.generator, device="cuda")
        product = product * given["topk_weights"].double().unsqueeze(1)
    if "_silu_" not in solution.definition:
        solution.launch({**given, "output": outputs["output"]})
        return wrong("output", outputs["output"], product, noise=1e-5)
    outputs["output"] = poisoned(choices, n // 2, dtype)
    solution.launch({**given, **outputs})
    gate, up = outputs["gate_up"].double().chunk(2, -1)
    active = torch.nn.functional.silu(gate)
    if "_vllm_" in solution.kernel_name:
        active = active.to(dtype).double()
    return wrong("gate_up", outputs["gate_up"], product, noise=1e-5) + wrong_rounded_twice("output", outputs["output"], (active * up).to(dtype))


def sampling(solution, dtype, width, rows):
    """Every token must be one of those that the limits keep, in float64. tests/gpu/sampling.py compares tokens with FlashInfer's."""
    draw = Draw(rows * 59 + width, dtype)
    probs = torch.softmax(3 * torch.randn(rows, width, generator=draw.generator, device="cuda"), -1)
    limits = {"top_k": torch.randint(1, 60, (rows,), generator=draw.generator, device="cuda", dtype=torch.int32),
              "top_p": torch.rand(rows, generator=draw.generator, device="cuda"),
              "min_p": torch.rand(rows, generator=draw.generator, device="cuda")}
    given = limits
    if "_one_limit" in solution.definition:
        limits = {name: limit[:1].expand(rows) for name, limit in limits.items()}
        given = {name: limit[0].item() for name, limit in limits.items()}
    order = probs.double().sort(-1, descending=True).values
    least = torch.zeros(rows, 1, dtype=torch.float64, device="cuda")
    if "top_k" in solution.definition:
        least = torch.maximum(least, order.gather(1, limits["top_k"].long().unsqueeze(1) - 1))
    if "top_p" in solution.definition:
        before = order.cumsum(-1) - order
        least = torch.maximum(least, torch.where(before < limits["top_p"].double().unsqueeze(1) + 1e-5, order, 2).amin(-1, keepdim=True))
    if "min_p" in solution.definition:
        least = torch.maximum(least, limits["min_p"].double().unsqueeze(1) * order[:, :1] * (1 - 1e-6))
    problems = []
    for offset in range(20):
        samples, valid = torch.full((rows,), -7, dtype=torch.int32, device="cuda"), torch.full((rows,), 7, dtype=torch.uint8, device="cuda")
        solution.launch({"probs": probs, **given, "samples": samples, "valid": valid, "seeds": 0, "seed": 5, "offsets": 0, "offset": offset,
                         "seed_stride": 0, "offset_stride": 0, "vocab_size": width, "batch_size": rows})
        is_token = (samples >= 0) & (samples < width) & (valid == (7 if "_tokens_" in solution.definition else 1))
        kept = probs.double().gather(1, samples.long().clamp(0, width - 1).unsqueeze(1)) >= least
        problems += [f"draw {offset}: row {row} gets {samples[row].item()}" for row in (~(is_token & kept[:, 0])).nonzero()[:, 0].tolist()]
    return problems


FAMILIES = {
    "rmsnorm": rmsnorm, "rmsnorm_no_weight": rmsnorm, "gemma_rmsnorm": gemma_rmsnorm, "fused_add_rmsnorm": fused_add_rmsnorm,
    "fused_add_rmsnorm_no_weight": fused_add_rmsnorm, "mul_and_silu": gated_activation, "silu_and_mul_clamp": silu_and_mul_clamp,
    "gemma_fused_add_rmsnorm": gemma_fused_add_rmsnorm, "rmsnorm_quant": rmsnorm_quant,
    "fused_add_rmsnorm_quant": fused_add_rmsnorm_quant, "layernorm": layernorm, "silu_and_mul": gated_activation,
    "gelu_and_mul": gated_activation, "gelu_tanh_and_mul": gated_activation, "softmax": softmax,
    "rope_cos_sin_cache": rope_cos_sin_cache, "rope_slice": rope_slice, "add_rmsnorm": sum_rmsnorm, "add_rmsnorm_copy": sum_rmsnorm,
    "add2_rmsnorm": sum_rmsnorm, "add2_rmsnorm_sum": sum_rmsnorm, **dict.fromkeys(("silu_and_mul_once", "gelu_tanh_and_mul_once"), gated_activation),
    **dict.fromkeys(("gemma_norm_add_rmsnorm", "gemma_norm_add2_rmsnorm", "gemma_norm_add2_rmsnorm_sum"), sandwich_rmsnorm),
    **dict.fromkeys(("gemma_qk_rmsnorm_rope_once_append", "gemma_qk_rmsnorm_rope_once_append_sums"), qk_rmsnorm_rope_once_append),
    "append_paged_kv_cache_slots": append_paged_kv_cache_slots, "qk_rmsnorm_rope_append": qk_rmsnorm_rope_append,
    **dict.fromkeys(("qk_rmsnorm_rope_once_append", "qk_rmsnorm_rope_once_append_sums"), qk_rmsnorm_rope_once_append),
    "rope_append": rope_append, "rope_append_float": rope_append, "qk_rmsnorm_rope_store": rope_store, "rope_store": rope_store,
    **dict.fromkeys(("moe_routing", "moe_routing_small", "moe_routing_by_logit", "moe_topk"), moe_routing),
    **dict.fromkeys([f"moe_gemm{form}{kind}" for form in ("", "_each") for kind in ("", "_weighted", "_silu")], moe_gemm),
    **dict.fromkeys(("splitk_reduce_add_rmsnorm", "splitk_reduce_add2_rmsnorm", "splitk_reduce_add2_rmsnorm_sum"),
                    splitk_reduce_sum_rmsnorm),
    **dict.fromkeys(("moe_sum", "moe_sum_add2_rmsnorm", "moe_sum_add2_rmsnorm_sum", "moe_sum_fused_add_rmsnorm"), moe_sum),
    **dict.fromkeys(("fused_add_rmsnorm_then_quant", "fused_add_rmsnorm_then_quant_per_token", "silu_and_mul_then_quant",
                     "silu_and_mul_then_quant_per_token"), then_quant),
    **dict.fromkeys([f"{of}quant_{scales}" for of in ("", "rmsnorm_", "add_rmsnorm_", "add2_rmsnorm_sum_", "silu_and_mul_")
                     for scales in ("per_token", "static")], quant),
    **dict.fromkeys([f"{of}quant_per_block{kind}" for of, kind in (("", ""), ("", "_ue8m0"), ("", "_unbounded"), ("", "_floored"), ("", "_bounded"), ("rmsnorm_", ""),
                                                                   ("fused_add_rmsnorm_", ""), ("silu_and_mul_", ""))], quant_per_block),
    **dict.fromkeys([op + form for op in ("sampling_from_probs", "top_k_sampling", "top_p_sampling", "top_k_top_p_sampling", "min_p_sampling")
                     for form in ("", "_one_limit", "_tokens")], sampling),
}


COMPARED_ELSEWHERE = {**dict.fromkeys(("gemm", "gemm_fp8_token", "gemm_fp8_channel"), "scaled_products.py"),  # "gemm": fp8 is read as a number
                      "gemm_fp8_block": "block_scaled_products.py", "bias_rope_append": "vllm_rewrites.py",
                      **dict.fromkeys(("gemm_w4a16", "gemm_w4a16_offsets"), "machete_products.py"),
                      **dict.fromkeys(("moe_gemm_mxfp4_swiglu", "moe_gemm_mxfp4_weighted"), "mxfp4_products.py"),
                      **dict.fromkeys((f"{of_a}moe_gemm_block_scaled{form}{kind}" for of_a in ("", "quant_then_") for form in ("", "_each", "_ue8m0", "_ue8m0_each")
                                       for kind in ("", "_weighted", "_silu")), "expert_products.py"),
                      **dict.fromkeys((f"{kind}_then_quant_per_block" for kind in ("fused_add_rmsnorm", "silu_and_mul", "decode_combine_sorted")),
                                      "then_quant_per_block.py"),
                      **dict.fromkeys((f"{kind}_then_quant_per_block_{rule}" for rule in ("unbounded", "ue8m0")
                                       for kind in ("add_rmsnorm", "add2_rmsnorm_sum", "silu_and_mul_once")), "then_quant_per_block.py")}


def family_of(definition):
    return re.fullmatch(r"(.+?)(?:_[a-z]+\d+)+", definition)[1]


def numbers_of(definition):
    """Of "rope_slice_r6144_o0_n32_d128": {"r": 6144, "o": 0, "n": 32, "d": 128}."""
    parts = re.findall(r"_([a-z]+)(\d+)", definition[len(family_of(definition)):])
    return {letters: int(digits) for letters, digits in parts}


def check_folder(report, folder, solutions, seen, wanted):
    families = {}
    for solution in solutions:
        numbers = numbers_of(solution.definition)
        size = next((numbers[letter] for letter in "hvde" if letter in numbers), 4096 if "b" in numbers else None)  # "_b128" is for any
        suffix = f"_fp{numbers['fp']}" if "fp" in numbers else ""
        families.setdefault(family_of(solution.definition), []).append((solution, size, suffix))
    for family, members in sorted(families.items()):
        if wanted and family not in wanted:
            continue
        if family in COMPARED_ELSEWHERE:
            report.skip(f"{folder}: {family}, {len(members)} solutions", f"tests/gpu/{COMPARED_ELSEWHERE[family]} compares them")
            continue
        with report.phase(f"{folder}: {family}, {len(members)} solutions, against float64") as problems:
            for solution, size, suffix in members:
                case = solution.definition, solution.identity()
                if case in seen:
                    continue  # the same kernel, launched the same way, as in a folder before
                seen.add(case)
                for rows in ROWS:
                    found = FAMILIES[family](solution, DTYPES[suffix], size, rows)
                    problems += [f"{solution.definition}, {rows} rows: {problem}" for problem in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", metavar="FILE")
    parser.add_argument("--flashinfer", metavar="CUBIN")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="these alone, such as rope_slice")
    options = parser.parse_args()
    if unknown := set(options.families) - FAMILIES.keys() - COMPARED_ELSEWHERE.keys():
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    capability = torch.cuda.get_device_capability()
    sm = {8: 80, 9: 90}.get(capability[0], 100)
    report = Report("kernels")
    folders = {name: os.path.join(BUILD, "config", name) for name in FOLDERS}
    seen = set()
    for name, path in folders.items():
        check_folder(report, name, load_all(path, sm), seen, options.families)
    torch.cuda.synchronize()
    figures = {}
    if options.times:
        with report.phase("times are measured"):
            folders = {name: load_folder(path, sm) for name, path in folders.items()}
            times, figures = kernel_times.measure(folders, options.flashinfer)
            with open(options.times, "w") as file:
                json.dump(times, file, indent=1)
    return report.finish(distinct=len(seen), **figures)


if __name__ == "__main__":
    sys.exit(main())
