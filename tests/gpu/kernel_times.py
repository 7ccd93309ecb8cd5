"""Device times of the folders' solutions beside the kernels that they replace: in replayed graphs, in one run."""
import ctypes
import math

import torch
import torch.nn.functional as F

from graph_time import graph_us
from solutions import Kernel

ROWS = (1, 8, 64, 512, 1024, 4096, 16384)
MANY_SHORT_ROWS = 648720  # Q and K norm over all heads of a long prefill
LARGE_BYTES = 64e6  # beyond L2: rows that are judged by bandwidth
EPS = 1e-6


class FlashInfer:
    """FlashInfer's kernels, launched as its own host code launches them."""

    POINTER, UINT32, INT32, FLOAT = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_float

    def __init__(self, cubin):
        norm = [self.POINTER] * 3 + [self.UINT32] * 3 + [self.FLOAT] * 2
        self.rmsnorm_kernel = Kernel(cubin, "_ZN10flashinfer4norm13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff", norm)
        self.fused_kernel = Kernel(
            cubin, "_ZN10flashinfer4norm21FusedAddRMSNormKernelILj8E13__nv_bfloat16EEvPT0_S4_S4_jjjff", norm)
        self.silu_kernel = Kernel(
            cubin, "_ZN10flashinfer10activation18act_and_mul_kernelI13__nv_bfloat16XadL_Z4siluRKfEEEEvPT_PKS5_i",
            [self.POINTER, self.POINTER, self.INT32])

    def rmsnorm(self, x, w, y, is_dependent):
        rows, size = x.shape
        warps = -(-min(1024, size // 8) // 32)
        values = [x.data_ptr(), w.data_ptr(), y.data_ptr(), size, size, size, 0.0, EPS]
        self.rmsnorm_kernel.launch((rows, 1, 1), (32, warps, 1), values, warps * 4, is_dependent)

    def fused_add_rmsnorm(self, x, residual, w, is_dependent):
        rows, size = x.shape
        warps = -(-min(1024, size // 8) // 32)
        values = [x.data_ptr(), residual.data_ptr(), w.data_ptr(), size, size, size, 0.0, EPS]
        self.fused_kernel.launch((rows, 1, 1), (32, warps, 1), values, (-(-warps // 4) * 4 + size) * 4, is_dependent)

    def silu_and_mul(self, x, y, is_dependent):
        tokens, width = y.shape
        values = [y.data_ptr(), x.data_ptr(), width]
        self.silu_kernel.launch((tokens, 1, 1), (min(width // 8, 1024), 1, 1), values, 0, is_dependent)


class Table:
    """One family's cells: what the kernel replaced, ours and a copy of the same bytes take."""

    copies = {}

    def __init__(self, name):
        self.name = name
        self.cells = []

    def copy_us(self, moved_bytes):
        count = int(moved_bytes) // 4  # half is read, half is written, in 2-byte elements
        if count not in Table.copies:
            source = torch.empty(count, dtype=torch.bfloat16, device="cuda").normal_()
            target = torch.empty_like(source)
            Table.copies[count] = graph_us(lambda: target.copy_(source), moved_bytes)
        return Table.copies[count]

    def add(self, rows, size, moved_bytes, original, ours):
        cell = {"rows": rows, "size": size, "original_us": graph_us(original, moved_bytes),
                "ours_us": graph_us(ours, moved_bytes)}
        cell["speedup"] = cell["original_us"] / cell["ours_us"]
        if moved_bytes > LARGE_BYTES:
            cell["share_of_copy"] = self.copy_us(moved_bytes) / cell["ours_us"]
        self.cells.append(cell)

    def figures(self):
        speedups = [cell["speedup"] for cell in self.cells]
        shares = [cell["share_of_copy"] for cell in self.cells if "share_of_copy" in cell]
        return {"geometric_mean": round(math.exp(sum(map(math.log, speedups)) / len(speedups)), 2),
                "worst": round(min(speedups), 3), "least_share_of_copy": round(min(shares), 3) if shares else None}

    def print(self):
        print(f"{self.name}: {self.figures()}")
        for cell in self.cells:
            share = f" {cell['share_of_copy']:>7.0%} of copy" if "share_of_copy" in cell else ""
            print(f"{cell['rows']:>8} x {cell['size']:>6} {cell['original_us']:>9.2f} {cell['ours_us']:>9.2f}"
                  f" {cell['speedup']:>6.2f}{share}")


def tensors(*shapes):
    return [torch.randn(*shape, device="cuda").to(torch.bfloat16) for shape in shapes]


def pytorch_tables(folder):
    norms = {"PyTorch rms_norm": ((4096, 5120, 7168, 8192), False), "PyTorch layer_norm": ((4096, 5120, 7168, 8192), True),
             "PyTorch rms_norm, heads": ((64, 128, 256), False), "PyTorch layer_norm, GPT-2": ((768, 1600), True)}
    for name, (sizes, is_layer_norm) in norms.items():
        table = Table(name)
        for size in sizes:
            for rows in ROWS + ((MANY_SHORT_ROWS,) if size <= 256 else ()):
                x, w, b, y = tensors((rows, size), (size,), (size,), (rows, size))
                mean, rstd = (torch.empty(rows, device="cuda") for _ in range(2))
                if is_layer_norm:
                    solution, original = folder[f"layernorm_h{size}"], lambda: F.layer_norm(x, (size,), w, b, EPS)
                else:
                    solution, original = folder[f"rmsnorm_h{size}"], lambda: F.rms_norm(x, (size,), w, EPS)
                arguments = {"hidden_states": x, "weight": w, "bias": b, "output": y, "mean": mean, "rstd": rstd,
                             "eps": EPS, "batch_size": rows, "hidden_size": size}
                table.add(rows, size, 4 * rows * size, original, lambda: solution.launch(arguments))
        yield table
    table = Table("PyTorch softmax, fp32")
    for size in (50257, 128256, 151936):
        for rows in (1, 8, 64, 512):
            x = torch.randn(rows, size, device="cuda")
            y = torch.empty_like(x)
            arguments = {"logits": x, "probs": y, "batch_size": rows, "vocab_size": size}
            table.add(rows, size, 8 * rows * size, lambda: torch.softmax(x, -1),
                      lambda: folder[f"softmax_v{size}_fp32"].launch(arguments))
    yield table


def flashinfer_tables(folder, flashinfer, is_dependent):
    name = "FlashInfer {}" + (", dependent launch" if is_dependent else "")
    table = Table(name.format("rmsnorm, heads"))
    for size in (64, 128, 256):
        for rows in ROWS + (MANY_SHORT_ROWS,):
            x, w, y = tensors((rows, size), (size,), (rows, size))
            arguments = {"hidden_states": x, "weight": w, "output": y, "eps": EPS, "weight_bias": 0.0, "num_heads": 1,
                         "rounds_before_weight": 0, "batch_size": rows, "token_stride": size, "head_stride": 0,
                         "output_token_stride": size, "output_head_stride": 0}
            table.add(rows, size, 4 * rows * size, lambda: flashinfer.rmsnorm(x, w, y, is_dependent),
                      lambda: folder[f"rmsnorm_h{size}"].launch(arguments, is_dependent))
    yield table
    table = Table(name.format("fused_add_rmsnorm"))
    for size in (4096, 5120, 7168, 8192):
        for rows in ROWS:
            x, residual, w = tensors((rows, size), (rows, size), (size,))
            arguments = {"hidden_states": x, "residual": residual, "weight": w, "output": x, "eps": EPS,
                         "residual_output": residual, "weight_bias": 0.0, "batch_size": rows, "input_stride": size,
                         "residual_stride": size}
            table.add(rows, size, 8 * rows * size, lambda: flashinfer.fused_add_rmsnorm(x, residual, w, is_dependent),
                      lambda: folder[f"fused_add_rmsnorm_h{size}"].launch(arguments, is_dependent))
    yield table
    table = Table(name.format("silu_and_mul"))
    for width in (11008, 14336, 18944):
        for rows in ROWS:
            x, y = tensors((rows, 2 * width), (rows, width))
            arguments = {"input": x, "output": y, "num_tokens": rows, "hidden_div_2": width, "hidden_size": 2 * width}
            table.add(rows, width, 6 * rows * width, lambda: flashinfer.silu_and_mul(x, y, is_dependent),
                      lambda: folder[f"silu_and_mul_h{2 * width}"].launch(arguments, is_dependent))
    yield table


def measure(folders, flashinfer_cubin):
    """Cells by table, and each table's figures."""
    tables = list(pytorch_tables(folders["pytorch"]))
    if flashinfer_cubin:
        flashinfer = FlashInfer(flashinfer_cubin)
        for is_dependent in (False, True):
            tables += flashinfer_tables(folders["flashinfer"], flashinfer, is_dependent)
    for table in tables:
        table.print()
    return {table.name: table.cells for table in tables}, {table.name: table.figures() for table in tables}
