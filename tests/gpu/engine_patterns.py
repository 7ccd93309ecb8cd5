#!/usr/bin/env python3
"""FlashInfer's, SGLang's and vLLM's launches under the shim: which solution they get, with which arguments.

    engine_patterns.py flashinfer|sglang|vllm     under the shim with that folder

The kernels that are launched do nothing (engine_stubs.cu); what is in the outputs afterwards was computed by what the
shim put in their place.
"""
import ctypes
import os
import sys

import torch
import torch.nn.functional as F

from counters import BUILD, Watch
from report import Report
from solutions import Kernel

STUBS = os.path.join(BUILD, "tests", "data", "engine_stubs.fatbin")
POINTER, INT32, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
CTYPES = {"p": POINTER, "i": INT32, "l": INT64, "f": FLOAT, "b": ctypes.c_bool}
EPS = 1e-5
ROWS, SIZE, HEADS = 37, 4096, 5
ONE = torch.ones(())


def random(*shape):
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def empty(*shape, dtype=torch.bfloat16):
    return torch.full(shape, float("nan"), device="cuda").to(dtype)


def norm(x, w, bias=0.0):
    x = x.double()
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (w.double() + bias)


def differs(actual, exact, tolerance=0.01):
    error = (actual.double() - exact).abs() / (exact.abs() + 1e-2)
    return [] if error.max() <= tolerance else [f"relative error {error.max().item():.3f}"]


def launch(symbol, types, grid, values, is_dependent=False):
    values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values]
    kernel = Kernel(STUBS, symbol, [CTYPES[kind] for kind in types])
    kernel.launch(grid, (128, 1, 1), values, is_dependent=is_dependent)
    torch.cuda.synchronize()


FI_NORM = "_ZN10flashinfer4norm"


def flashinfer_norms():
    """(name, definition, launch and look)"""
    for bias, gemma in ((0.0, ""), (1.0, "gemma_")):
        size = 2304 if gemma else SIZE

        def rows(size=size, bias=bias):
            x, w, y = random(ROWS, size + 8), random(size), empty(ROWS, size + 16)
            launch(FI_NORM + "13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff", "pppiiiff", (ROWS, 1, 1),
                   [x, w, y, size, size + 8, size + 16, bias, EPS], is_dependent=True)
            return differs(y[:, :size], norm(x[:, :size], w, bias))

        def fused(size=size, bias=bias):
            x, residual, w = random(ROWS, size), random(ROWS, size), random(size)
            total = x.double() + residual.double()
            launch(FI_NORM + "21FusedAddRMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff", "pppiiiff", (ROWS, 1, 1),
                   [x, residual, w, size, size, size, bias, EPS], is_dependent=True)
            return differs(x, norm(total, w, bias)) + differs(residual, total)

        yield f"{gemma}rmsnorm", f"{gemma}rmsnorm_h{size}", rows
        yield f"{gemma}fused_add_rmsnorm", f"{gemma}fused_add_rmsnorm_h{size}", fused


def flashinfer_rope(position="i", name="rope_cos_sin_cache_d128"):
    def rope():
        tokens, head = 19, 128
        both = random(tokens, (HEADS + 2) * head)
        q, k = both[:, :HEADS * head], both[:, HEADS * head:]
        angle = torch.rand(64, head // 2, device="cuda") * 6
        cache = torch.cat([angle.cos(), angle.sin()], -1)
        positions = torch.randint(64, (tokens,), device="cuda", dtype={"i": torch.int32, "l": torch.int64}[position])
        cos, sin = cache.double()[positions.long()].unsqueeze(1).chunk(2, -1)
        x, y = both.double().view(tokens, -1, head).chunk(2, -1)
        exact = torch.cat([x * cos - y * sin, y * cos + x * sin], -1).view(tokens, -1)
        stride = both.stride(0)
        launch("_ZN10flashinfer41BatchQKApplyRotaryPosIdsCosSinCacheKernelILb0ELj128ELj8ELj16E13__nv_bfloat16" +
               position + "EEvPT3_S3_S3_S3_PfPT4_jjjjmmmmmmmm", "pppppp" + "iiii" + "l" * 8, (3, 1, 1),
               [q, k, q, k, cache, positions, tokens, HEADS, 2, head] + [stride, head] * 4)
        return differs(both, exact, 0.02)

    yield "rope, in place", name, rope


def activation(name, symbol, more_types="", more=(), definition="silu_and_mul", exact=lambda x, y: F.silu(x) * y):
    def run():
        x, y = random(ROWS, 2 * 14336), empty(ROWS, 14336)
        launch(symbol, "ppi" + more_types, (ROWS, 1, 1), [y, x, 14336, *more])
        return differs(y, exact(*x.double().chunk(2, -1)))

    yield name, f"{definition}_h28672", run


def flashinfer():
    yield from flashinfer_norms()
    yield from flashinfer_rope()
    yield from activation("silu_and_mul", "_ZN10flashinfer10activation18act_and_mul_kernelI13__nv_bfloat16XadL_Z4siluRKfEEEEv"
                          "PT_PKS5_i")

    def heads():
        x, w, y = random(ROWS, (HEADS + 2) * 128), random(128), empty(ROWS, HEADS * 128)
        launch(FI_NORM + "15QKRMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjjjjjff", "ppp" + "i" * 7 + "ff", (11, 1, 1),
               [x, w, y, 128, ROWS, HEADS, x.stride(0), 128, HEADS * 128, 128, 0.0, EPS], is_dependent=True)
        return differs(y.view(ROWS, HEADS, 128), norm(x[:, :HEADS * 128].reshape(ROWS, HEADS, 128), w))

    def quant(has_residual):
        x, residual, w = random(ROWS, SIZE), random(ROWS, SIZE), random(SIZE)
        scale, y = torch.full((1,), 0.02, device="cuda"), empty(ROWS, SIZE, dtype=torch.float8_e4m3fn)
        total = x.double() + residual.double() if has_residual else x.double()
        if has_residual:
            launch(FI_NORM + "26FusedAddRMSNormQuantKernelILj8E13__nv_bfloat1613__nv_fp8_e4m3EEvPT0_S5_S5_PT1_jjjjfPff",
                   "ppppiiiifpf", (ROWS, 1, 1), [x, residual, w, y, SIZE, SIZE, SIZE, SIZE, 0.0, scale, EPS])
        else:
            launch(FI_NORM + "18RMSNormQuantKernelILj8E13__nv_bfloat1613__nv_fp8_e4m3EEvPT0_S5_PT1_jjjfPff",
                   "pppiiifpf", (ROWS, 1, 1), [x, w, y, SIZE, SIZE, SIZE, 0.0, scale, EPS])
        problems = differs(y.float(), (norm(total, w) / 0.02).clamp(-448, 448), 0.11)
        return problems + (differs(residual, total) if has_residual else [])

    yield "rmsnorm over heads", "rmsnorm_h128", heads
    yield "rmsnorm_quant", f"rmsnorm_quant_h{SIZE}", lambda: quant(False)
    yield "fused_add_rmsnorm_quant", f"fused_add_rmsnorm_quant_h{SIZE}", lambda: quant(True)


def sglang():
    yield from flashinfer_norms()
    yield from flashinfer_rope("l", "rope_cos_sin_cache_d128_pos64")
    yield from activation("silu_and_mul", "_ZN10flashinfer10activation18act_and_mul_kernelI13__nv_bfloat16XadL_Z4siluIfET_RK"
                          "S4_EEEEvPS4_PS5_i")


def vllm():
    prefix = "_ZN4vllm15rms_norm_kernelIN3c108BFloat16E"

    def rows(symbol, types, values):
        def run():
            x, w, y = random(ROWS, SIZE + 8), random(SIZE), empty(ROWS, SIZE)
            launch(prefix + symbol, types, (ROWS, 1, 1), values(y, x, w, SIZE + 8))
            return differs(y, norm(x[:, :SIZE], w), 0.02)
        return run

    def heads():
        x, w, y = random(ROWS, (HEADS + 2) * 128), random(128), empty(ROWS * HEADS, 128)
        launch(prefix + "Li8ELi3EEEvPT_PKS3_lllllS6_fii", "pplllllpfii", (ROWS * HEADS, 1, 1),
               [y, x, 128, x.stride(0), 0, HEADS, 0, w, EPS, ROWS * HEADS, 128])
        return differs(y.view(ROWS, HEADS, 128), norm(x[:, :HEADS * 128].reshape(ROWS, HEADS, 128), w), 0.02)

    def without_weight(rank, sequences=1):
        x, y = random(sequences * ROWS, (HEADS + 2) * 128), empty(sequences * ROWS * HEADS, 128)
        heads = [128, x.stride(0), ROWS * x.stride(0), HEADS, ROWS] if rank == 4 else [128, x.stride(0), 0, HEADS, 0]
        launch(prefix + f"Li8ELi{rank}ELb0EEEvPT_PKS3_lllllS6_lfii", "pplllllplfii", (len(y), 1, 1),
               [y, x, *heads, None, 0, EPS, len(y), 128])
        return differs(y.view(-1, HEADS, 128), norm(x[:, :HEADS * 128].reshape(-1, HEADS, 128), ONE))

    def rows_without_weight():
        x, y = random(ROWS, SIZE + 8), empty(ROWS, SIZE)
        launch(prefix + "Li8ELi2ELb0EEEvPT_PKS3_lllllS6_lfii", "pplllllplfii", (ROWS, 1, 1),
               [y, x, SIZE + 8, 0, 0, 0, 0, None, 0, EPS, ROWS, SIZE])
        return differs(y, norm(x[:, :SIZE], ONE))

    def fused_without_weight(more="", types="", values=()):
        x, residual = random(ROWS, SIZE), random(ROWS, SIZE)
        total = (x + residual).double()
        launch("_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8ELb0EEENSt9enable_ifIXaagtT0_Li0Esr4vllm12_typeConvertIT_"
               "EE6existsEvE4typeEPS4_lS7_PKS4_fii" + more, "plppfii" + types, (ROWS, 1, 1), [x, SIZE, residual, None, EPS, ROWS, SIZE, *values])
        return differs(x, norm(total, ONE)) + differs(residual, total, 0)

    def fused(has_weight=""):
        x, residual, w = random(ROWS, SIZE), random(ROWS, SIZE), random(SIZE)
        total = (x + residual).double()
        launch("_ZN4vllm25fused_add_rms_norm_kernelIN3c108BFloat16ELi8E" + has_weight +
               "EENSt9enable_ifIXaagtT0_Li0Esr4vllm12_typeConvertIT_EE6existsEvE4typeEPS4_lS7_PKS4_fii", "plppfii", (ROWS, 1, 1), [x, SIZE, residual, w, EPS, ROWS, SIZE])
        return differs(x, norm(total, w), 0.02) + differs(residual, total, 0)

    yield "rms_norm", f"rmsnorm_h{SIZE}", rows(
        "EEvPT_PKS3_lS6_fii", "pplpfii", lambda y, x, w, stride: [y, x, stride, w, EPS, ROWS, SIZE])
    yield "rms_norm, vectorized", f"rmsnorm_h{SIZE}", rows(
        "Li8ELi2EEEvPT_PKS3_lllllS6_fii", "pplllllpfii",
        lambda y, x, w, stride: [y, x, stride, 0, 0, 0, 0, w, EPS, ROWS, SIZE])
    yield "rms_norm, with a weight", f"rmsnorm_h{SIZE}", rows(
        "Li8ELi2ELb1EEEvPT_PKS3_lllllS6_lfii", "pplllllplfii",
        lambda y, x, w, stride: [y, x, stride, 0, 0, 0, 0, w, 0, EPS, ROWS, SIZE])
    yield "rms_norm over heads", "rmsnorm_h128", heads
    yield "rms_norm, without a weight", f"rmsnorm_no_weight_h{SIZE}", rows_without_weight
    yield "rms_norm over heads, without a weight", "rmsnorm_no_weight_h128", lambda: without_weight(3)
    yield "rms_norm over heads of sequences, without a weight", "rmsnorm_no_weight_h128", lambda: without_weight(4, 3)
    yield "fused_add_rms_norm, without a weight", f"fused_add_rmsnorm_no_weight_h{SIZE}", fused_without_weight
    yield ("fused_add_rms_norm, without a weight, strided", f"fused_add_rmsnorm_no_weight_h{SIZE}",
           lambda: fused_without_weight("l", "l", (SIZE,)))

    def rope():
        tokens, head = 19, 128
        both = random(tokens, (HEADS + 2) * head)
        q, k = both[:, :HEADS * head], both[:, HEADS * head:]
        angle = torch.rand(64, head // 2, device="cuda") * 6
        cache = torch.cat([angle.cos(), angle.sin()], -1).bfloat16()
        positions = torch.randint(64, (tokens,), device="cuda")
        cos, sin = cache.double()[positions].unsqueeze(1).chunk(2, -1)
        x, y = both.double().view(tokens, -1, head).chunk(2, -1)
        exact = torch.cat([x * cos - y * sin, y * cos + x * sin], -1).view(tokens, -1)
        launch("_ZN4vllm23rotary_embedding_kernelIN3c108BFloat16ES2_Lb1EEEvPKlPT_S6_PKT0_illliiilb", "ppppillliiilb",
               (tokens, 1, 1), [positions, q, k, cache, head, both.stride(0), both.stride(0), head, HEADS, 2, head, 0, 0])
        return differs(both, exact, 0.02)

    yield "fused_add_rms_norm", f"fused_add_rmsnorm_h{SIZE}", fused
    yield "fused_add_rms_norm, with a weight", f"fused_add_rmsnorm_h{SIZE}", lambda: fused("Lb1E")
    yield "rotary_embedding", "rope_cos_sin_cache_d128_pos64_cache16", rope
    prefix_act = "_ZN4vllm18act_and_mul_kernelIN3c108BFloat16E"
    yield from activation("silu_and_mul", prefix_act + "XadL_ZNS_11silu_kernelIS2_EET_RKS4_EELb1EEEvPS4_PS5_i")
    yield from activation("silu_and_mul, vectorized", prefix_act + "14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_EEXadL_"
                          "ZNS_18packed_silu_kernelIS3_EES5_S7_EELb1ELb1ELb0EEEvPS5_PS6_i")
    yield from activation("silu_and_mul, scaled", prefix_act + "14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_fEEXadL_"
                          "ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb0ELb0EEEvPS5_PS6_ifff", "fff", (0.0, 1.0, 0.0))
    yield from activation("mul_and_silu, vectorized", prefix_act + "14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_EEXadL_"
                          "ZNS_18packed_silu_kernelIS3_EES5_S7_EELb0ELb1ELb0EEEvPS5_PS6_i",
                          definition="mul_and_silu", exact=lambda x, y: x * F.silu(y))

    def clamped(x, y):
        x = x.clamp(max=0.75)
        return x * torch.sigmoid(1.702 * x) * (y.clamp(-0.75, 0.75) + 1)

    yield from activation("silu_and_mul, with a limit", prefix_act + "14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_fEEXadL_"
                          "ZNS_18packed_silu_kernelIS3_EES5_S7_fEELb1ELb1ELb1ELb0EEEvPS5_PS6_ifff", "fff", (0.75, 1.702, 1.0),
                          definition="silu_and_mul_clamp", exact=clamped)


def main(arguments):
    engines = {"flashinfer": flashinfer, "sglang": sglang, "vllm": vllm}
    if len(arguments) != 1 or arguments[0] not in engines:
        print(__doc__, file=sys.stderr)
        return 2
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    report = Report(f"patterns of {arguments[0]}")
    for name, definition, run in engines[arguments[0]]():
        with report.phase(f"{arguments[0]}: {name} is a hit for {definition}, and right") as problems:
            with Watch(problems, {(definition, "hit"): 1}):
                problems += run()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
