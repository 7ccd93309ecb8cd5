#!/usr/bin/env python3
"""Writes a config folder whose solution is PyTorch's own fused RMSNorm kernel, for overhead.sh: a
redirected launch then costs the GPU what the original does, and all that differs is the shim.

    overhead_config.py FOLDER

The kernel is taken out of libtorch_cuda.so with cuobjdump. That library holds a fatbin for each of
its sources, compressed, so that which of them has the kernel shows only after extraction: all are
extracted for this GPU, a process each, side by side. Needs cuobjdump (CUDA toolkit).
"""
import concurrent.futures
import hashlib
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HIDDEN = 4096
SYMBOL = re.compile(rb"_ZN2at6native\d+_GLOBAL__N__[0-9a-f]{8}_\d+_layer_norm_kernel_cu_[0-9a-f]{8}"
                    rb"28vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_\0")
FATBIN = struct.pack("<I", 0xBA55ED50)


def section(data, name):
    """Where a section of a 64-bit ELF file lies: (offset, size)."""
    table, = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
    for header in headers:
        at = headers[names][4] + header[0]
        if data[at:at + len(name) + 1] == name + b"\0":
            return header[4], header[5]
    raise SystemExit(f"overhead_config: the library has no section {name.decode()}")


def fatbins(data):
    """The fatbins of a library, one for each source that was compiled into it."""
    at, size = section(data, b".nv_fatbin")
    end = at + size
    while True:
        at = data.find(FATBIN, at, end)
        if at < 0:
            return
        header_size, body_size = struct.unpack_from("<HQ", data, at + 6)
        yield data[at:at + header_size + body_size]
        at += header_size + body_size


def find_kernel(fatbin, sm):
    """The cubin with the kernel and the kernel's symbol, or None."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "source.fatbin")
        with open(path, "wb") as file:
            file.write(fatbin)
        subprocess.run(["cuobjdump", "-arch", sm, "-xelf", "all", path], cwd=folder,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        for name in os.listdir(folder):
            if not name.endswith(".cubin"):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                cubin = file.read()
            found = SYMBOL.search(cubin)
            if found:
                return cubin, found.group()[:-1].decode()
    return None


def extract(library, sm):
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for found in pool.map(lambda fatbin: find_kernel(fatbin, sm), fatbins(data)):
                if found:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return found
    raise SystemExit(f"overhead_config: {library} has no fused RMSNorm kernel for {sm}")


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else (json.dumps(data, indent=2) + "\n").encode())


def write_folder(root, cubin, symbol, sm):
    name = f"rmsnorm_h{HIDDEN}"
    image = f"{name}.{sm}.cubin"
    write(f"{root}/definitions/{name}.json", {
        "name": name,
        "op_type": "rmsnorm",
        "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": HIDDEN}},
        "inputs": {"hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
                   "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}},
        "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}},
        "reference": "def run(hidden_states, weight):\n    raise NotImplementedError",
    })
    write(f"{root}/patterns/torch-rms-norm.json", {
        "label": "torch-rms-norm",
        "match": {"symbol": symbol, "params": [4, 4, 8, 8, 8, 8, 8, 8]},
        "axes": {"hidden_size": {"arg": 0, "type": "int32"}, "batch_size": {"grid": "x"}},
        "arguments": {
            "row_length": {"arg": 0, "type": "int32"},
            "eps": {"arg": 1, "type": "float32"},
            "hidden_states": {"arg": 2, "dtype": "bfloat16"},
            "weight": {"arg": 3, "dtype": "bfloat16"},
            "beta": {"arg": 4, "dtype": "bfloat16"},
            "mean": {"arg": 5, "dtype": "float32"},
            "rstd": {"arg": 6, "dtype": "float32"},
            "output": {"arg": 7, "dtype": "bfloat16"},
            "threads_x": {"block": "x"},
            "threads_y": {"block": "y"},
            "threads_z": {"block": "z"},
            "shared_bytes": {"shared_mem": True},
        },
        "writes": ["output", "rstd"],
        "definition": "rmsnorm_h{hidden_size}",
    })
    write(f"{root}/solutions/{name}.json", {
        "name": f"copy_of_{name}",
        "definition": name,
        "author": "PyTorch",
        "description": "The kernel that it replaces, launched as that was.",
        "spec": {"language": "cuda", "target_hardware": ["NVIDIA_H200"], "entry_point": "kernel.cu::run",
                 "dependencies": [], "destination_passing_style": True},
        "sources": [{"path": "kernel.cu", "content": ""}],
        "launch": {
            "kernel": symbol,
            "images": [{"path": image, "sha256": hashlib.sha256(cubin).hexdigest()}],
            "grid": ["batch_size", 1, 1],
            "block": ["threads_x", "threads_y", "threads_z"],
            "shared_mem": "shared_bytes",
            "arguments": ["row_length", "eps", "hidden_states", "weight", "beta", "mean", "rstd", "output"],
        },
    })
    write(f"{root}/solutions/{image}", cubin)


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: overhead_config.py FOLDER")
    if shutil.which("cuobjdump") is None:
        raise SystemExit("overhead_config: no cuobjdump on the PATH (CUDA toolkit)")
    import torch
    sm = "sm_%d%d" % torch.cuda.get_device_capability()
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    write_folder(sys.argv[1], *extract(library, sm), sm)


if __name__ == "__main__":
    main()
