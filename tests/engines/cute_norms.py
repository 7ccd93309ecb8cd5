#!/usr/bin/env python3
"""What FlashInfer's norms become when CuTe-DSL compiles them for Hopper. Needs no GPU.

  cute_norms.py FLASHINFER OUT KIND SIZE,SIZE...   writes OUT/<kind>.<dtype>.<size>.<bias>.<rows>.<pdl>.cubin

FLASHINFER is a folder that the wheel is unpacked in. Run by engines.py, with the Python of a virtual environment that has
nvidia-cutlass-dsl. PyTorch is not needed: of it, FlashInfer's kernels ask for no more than what the GPU can do.
"""
import importlib
import inspect
import itertools
import os
import pathlib
import sys
import tempfile
import types


class Hopper:
    shared_memory_per_block_optin, multi_processor_count, major, minor = 227 << 10, 132, 9, 0


class Torch(types.ModuleType):
    """Whatever is asked for exists."""
    __version__ = "2"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_kernels(flashinfer):
    """Its modules without their packages' own __init__, which import all of FlashInfer."""
    for name in ("flashinfer", "flashinfer.norm", "flashinfer.norm.kernels", "flashinfer.cute_dsl"):
        package = types.ModuleType(name)
        package.__path__ = [str(flashinfer / name.replace(".", "/"))]
        sys.modules[name] = package
    return [importlib.import_module(f"flashinfer.norm.kernels.{name}") for name in ("rmsnorm", "fused_add_rmsnorm")]


def stand_in_for_torch():
    torch = Torch("torch")
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: False, current_device=lambda: 0, get_device_properties=lambda *_: Hopper,
        get_device_capability=lambda *_: (Hopper.major, Hopper.minor))
    sys.modules["torch"] = torch


def main():
    stand_in_for_torch()
    flashinfer, out, kind = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as dump:
        os.environ.update(CUTE_DSL_ARCH="sm_90a", CUTE_DSL_KEEP="cubin", CUTE_DSL_DUMP_DIR=dump)
        name = f"_get_compiled_{kind}_kernel"
        build = next(getattr(module, name) for module in import_kernels(flashinfer) if hasattr(module, name))
        accepted = inspect.signature(build).parameters
        biases = (0.0,) if "quant" in kind else (0.0, 1.0)
        layouts = (True, False) if "contiguous" in accepted else (False,)
        for size, dtype, bias, contiguous, pdl in itertools.product(
                map(int, sys.argv[4].split(",")), ("bfloat16", "float16"), biases, layouts, (True, False)):
            given = {"dtype_str": dtype, "out_dtype_str": "float8_e4m3fn", "H": size, "head_dim": size, "weight_bias": bias,
                     "enable_pdl": pdl, "sm_version": 90, "contiguous": contiguous}
            made = build(**{key: value for key, value in given.items() if key in accepted})
            rows = "dense" if contiguous else "strided"
            (out / f"{kind}.{dtype}.{size}.{bias:.0f}.{rows}.{pdl:d}.cubin").write_bytes(made.artifacts.CUBIN)


if __name__ == "__main__":
    main()
