#!/usr/bin/env python3
"""What the kernels of published engines are, and which of them the ready folders know.

  tests/engines/engines.py all [ENGINE]    read, cute, decode and show, as far as this machine can: `make engines`
  tests/engines/engines.py read [ENGINE]   gets the wheels of engines.table by pip into build/wheels, reads their
                                           kernels, and writes tests/engines/data/ENGINE.table
  tests/engines/engines.py show [ENGINE]   from those tables: which versions each pattern of build/config/ENGINE
                                           fits a kernel of, and, for each family, the kernels that no pattern
                                           fits (-v: their symbols). Exit code 1 where a pattern fits nothing in any
                                           version, or kernels of its name only with other parameters; or nothing in
                                           the newest, and older.table does not have it

  tests/engines/engines.py recorded ENGINE VERSION RECORDING...   writes what a run of the engine compiled, of a
                                           recording (fibshim record), to tests/engines/data/ENGINE.recorded; of cuBLAS
                                           also what tests/gpu/cublas_versions.py --dump has written
  tests/engines/engines.py cute            compiles FlashInfer's CuTe-DSL norms, for which no GPU is needed, and writes
                                           tests/engines/data/flashinfer.recorded and config/flashinfer/cute_*.table
  tests/engines/engines.py sglang CUBIN [VERSION]         compiles SGLang's kernels of tests/engines/sglang_*.cu as it does itself at run
                                           time, for tests/gpu/sglang_rewrites.py, and those of quantisation, for
                                           quant_per_block.py, into CUBIN's name with .quant.cubin
  tests/engines/engines.py decode          compiles FlashInfer's decode attention as it does itself at run time, with the nvcc of NVCC (or
                                           several, with : between), and adds what it finds to
                                           tests/engines/data/flash_attention.recorded and config/flash_attention/planned.table
  tests/engines/engines.py inductor        compiles what torch.compile makes in vLLM's default mode, for which no GPU is needed, and writes
                                           tests/engines/data/vllm.compiled and config/vllm/inductor_*.table
  tests/engines/engines.py experts         compiles vLLM's and SGLang's products of tokens with the weights of their experts, for which no GPU
                                           is needed, and writes tests/engines/data/ENGINE.experts and config/ENGINE/moe_gemm*.table
  tests/engines/engines.py attention       copies the cubins with sglang-kernel's decode attention out of its wheel, for tests/gpu/sglang_attention.py
  tests/engines/engines.py sampling        compiles FlashInfer's sampling from probabilities, and gets sgl-kernel's, with which
                                           tests/gpu/sampling.py compares ours

What was compiled or copied is kept, in build/cute_norms, build/flashinfer_decode, build/inductor, build/sglang_attention and build/flashinfer_sampling, where the tests on a GPU find it.

A table has symbols and parameters of the families below, no code: tests/engines/engines_test.sh works on it.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import hashlib
import itertools
import json
import math
import mmap
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

from families import FAMILIES, family_of, function_name
from known_kernels import demangle

HERE = pathlib.Path(__file__).parent
BUILD = pathlib.Path(os.environ.get("BUILD", HERE.parent.parent / "build"))
WHEELS = pathlib.Path(os.environ.get("WHEELS", BUILD / "wheels"))
CUTE_NORMS, FLASHINFER_DECODE = BUILD / "cute_norms", BUILD / "flashinfer_decode"
SGLANG_ATTENTION = BUILD / "sglang_attention"
FATBIN = struct.pack("<I", 0xba55ed50)
FOR_SM_90A = 0x800  # in e_flags of images that CUDA 12 made
FLASHINFER_SAMPLING, INDUCTOR = BUILD / "flashinfer_sampling", BUILD / "inductor"
FIBSHIM = BUILD / "bin/fibshim"
# Versions of FlashInfer, and of the CuTe-DSL that compiles their norms. 4.8.1 makes the same code of all of these versions.
CUTE = (("0.6.18", "4.6.2"), ("0.6.18", "4.6.2[cu13]"), ("0.6.18", "4.8.1"),
        *((version, dsl) for version in ("0.7.2", "0.7.2.post1", "0.7.4") for dsl in ("4.8.1", "4.8.1[cu13]")))
CUTE_TYPES = {"bfloat16": ("bf16", "-", "bf16"), "float16": ("fp16", "_fp16", "f16")}
# By how rows lie, cells of config/flashinfer/cute_*.table: the bytes of a tensor's parameter, its shape in the symbol, and the
# strides of the first three parameters, where they are tensors.
CUTE_ROWS = {
    "dense": ("16", r"i64(?<hidden_size>\\d+)\\k<hidden_size>1_.*", *['{"expr":"hidden_size"}'] * 3),
    "strided": ("24", r"i64(?<hidden_size>\\d+)i64div81_.*", *(f'{{"arg":{arg},"offset":16,"type":"int64"}}' for arg in range(3))),
}
TVM_FFI = "apache-tvm-ffi", "0.1.15.post2"  # its headers, with which SGLang's kernels are compiled
# Versions whose decode attention is compiled, and by head size how many threads a token has, which the name tells.
DECODE = ("0.6.18", "0.7.2", "0.7.2.post1", "0.7.4")
DECODE_THREADS = {64: 8, 128: 16}
DECODE_TYPES = {"bf16": "nv_bfloat16", "fp16": "half"}
# PyTorch of vLLM 0.20 to 0.26, of 0.27 to 0.32, and of 0.33. What it compiles, by models: rows, epsilon, width of the activation, and where vLLM rotates
# queries and keys by torch.compile alone the heads, their size, positions and tokens of a batch (16,384 in a process of its own, 8,192 as a server),
# and whether it norms these heads before.
TORCH = ("2.11.0", "2.13.0", "2.14.0")
MODELS = (
    *(f"896:1e-6:4864:14:2:64:{positions}:{tokens}" for positions in (32768, 131072) for tokens in (16384, 8192)),  # Qwen2-0.5B, Qwen2.5-0.5B
    *(f"1024:1e-6:3072:16:8:128:40960:{tokens}:norms" for tokens in (16384, 8192)),  # Qwen3-0.6B
    *(f"1536:1e-6:8960:12:2:128:{positions}:{tokens}" for positions in (32768, 131072) for tokens in (16384, 8192)),  # Qwen2.5-1.5B, R1-Distill-Qwen-1.5B
    "2048:1e-5:8192:32:8:64:131072:16384", "2048:1e-5:8192:32:8:64:131072:8192",  # Llama-3.2-1B
    *(f"2048:1e-6:6144:16:8:128:40960:{tokens}:norms" for tokens in (16384, 8192)),  # Qwen3-1.7B
    *(f"2048:1e-6:11008:16:2:128:32768:{tokens}" for tokens in (16384, 8192)),  # Qwen2.5-3B
    *(f"2048:1e-6:6144:32:4:128:{positions}:{tokens}:norms" for positions in (40960, 262144) for tokens in (16384, 8192)),  # Qwen3-30B-A3B
    "2048:1e-6:0:0:0:128:1:16384",  # its experts
    *(f"2560:1e-6:9728:32:8:128:{positions}:{tokens}:norms" for positions in (40960, 262144) for tokens in (16384, 8192)),  # Qwen3-4B
    "3072:1e-5:8192:24:8:128:131072:16384", "3072:1e-5:8192:24:8:128:131072:8192",  # Llama-3.2-3B
    "3072:1e-6:8192:0:0:128:1:16384",
    *(f"3584:1e-6:18944:28:4:128:{positions}:{tokens}" for positions in (32768, 131072) for tokens in (16384, 8192)),  # Qwen2.5-7B, R1-Distill-Qwen-7B
    *(f"4096:1e-5:14336:32:8:128:{positions}:{tokens}" for positions in (4096, 8192, 32768, 131072) for tokens in (16384, 8192)),  # Llama-3, Mistral
    *(f"4096:1e-6:12288:32:8:128:{positions}:{tokens}:norms" for positions in (4096, 40960) for tokens in (16384, 8192)),  # Qwen3-8B
    "4096:1e-6:0:0:0:128:1:16384",  # Qwen3-235B-A22B's experts
    *(f"5120:1e-5:13824:40:8:128:{positions}:{tokens}" for positions in (32768, 131072) for tokens in (16384, 8192)),  # Qwen2.5-14B, R1-Distill-Qwen-14B
    "5120:1e-5:32768:0:0:128:1:16384",  # Mistral-Small-24B
    *(f"5120:1e-6:17408:40:8:128:40960:{tokens}:norms" for tokens in (16384, 8192)),  # Qwen3-14B
    *(f"5120:1e-6:25600:64:8:128:40960:{tokens}:norms" for tokens in (16384, 8192)),  # Qwen3-32B
    "5120:1e-6:27648:0:0:128:1:16384",  # Qwen2.5-32B
    *(f"8192:1e-5:28672:64:8:128:{positions}:16384" for positions in (4096, 8192, 131072)),  # Llama-3-70B
    "8192:1e-6:29568:0:0:128:1:16384",  # Qwen2.5-72B
    *(f"{sizes}:{positions}:{tokens}:gemma" for sizes in ("2560:1e-6:10240:8:4:256", "3840:1e-6:15360:16:8:256", "5376:1e-6:21504:32:16:128")
      for positions in (131072, 1048576) for tokens in (16384, 8192)),  # Gemma-3-4B, 12B, 27B: of layers with a window, and of others
    # What one of several GPUs has.
    *(f"2048:1e-6:0:{32 // n}:{4 // n}:128:{positions}:{tokens}:norms:part" for n in (2, 4) for positions in (40960, 262144)
      for tokens in (16384, 8192)),  # Qwen3-30B-A3B
    *(f"4096:1e-5:7168:16:4:128:{positions}:{tokens}:part" for positions in (4096, 8192, 32768, 131072) for tokens in (16384, 8192)),  # Llama-3, Mistral
    *(f"4096:1e-5:3584:8:2:128:{positions}:{tokens}:part" for positions in (8192, 131072) for tokens in (16384, 8192)),
    *(f"4096:1e-6:6144:16:4:128:40960:{tokens}:norms:part" for tokens in (16384, 8192)),  # Qwen3-8B
    *(f"5120:1e-6:8704:20:4:128:40960:{tokens}:norms:part" for tokens in (16384, 8192)),  # Qwen3-14B
    *(f"5120:1e-6:{25600 // n}:{64 // n}:{8 // n}:128:40960:{tokens}:norms:part" for n in (2, 4, 8) for tokens in (16384, 8192)),  # Qwen3-32B
    *(f"5120:1e-6:{27648 // n}:{40 // n}:{8 // n}:128:{positions}:{tokens}:part" for n in (2, 4) for positions in (32768, 131072)
      for tokens in (16384, 8192)),  # Qwen2.5-32B, R1-Distill-Qwen-32B
    *(f"8192:1e-5:{28672 // n}:{64 // n}:{8 // n}:128:{positions}:{tokens}:part" for n in (2, 4, 8) for positions in (8192, 131072)
      for tokens in (16384, 8192)),  # Llama-3-70B
    *(f"8192:1e-6:{29568 // n}:{64 // n}:{8 // n}:128:32768:{tokens}:part" for n in (4, 8) for tokens in (16384, 8192)),  # Qwen2.5-72B
    # In fp16, as weights in 4 bits are published (config/machete). With these Qwen2.5 adds its biases where it rotates, which no folder knows: its rotation is left out here.
    *(f"{sizes}:{tokens}:{flags}fp16" for tokens in (16384, 8192) for sizes, flags in (
        *((f"2560:1e-6:9728:32:8:128:{positions}", "norms:") for positions in (40960, 262144)),  # Qwen3-4B
        *((f"4096:1e-5:14336:32:8:128:{positions}", "") for positions in (4096, 8192, 32768, 131072)),  # Llama-3, Mistral
        *((f"{sizes}:128:40960", "norms:") for sizes in ("4096:1e-6:12288:32:8", "5120:1e-6:17408:40:8", "5120:1e-6:25600:64:8")),  # Qwen3-8B, 14B, 32B
        *((f"8192:1e-5:28672:64:8:128:{positions}", "") for positions in (8192, 131072)))),  # Llama-3-70B
    *(f"{sizes}:0:0:128:1:16384:fp16" for sizes in (
        "3584:1e-6:18944", "5120:1e-5:13824", "5120:1e-6:27648", "8192:1e-6:29568", "5120:1e-5:32768")),  # Qwen2.5-7B to 72B, Mistral-Small-24B
    # In fp8. What rotates has no other code then: one number of positions, and of tokens, is enough.
    *(f"{sizes}:{scales}" for scales in ("fp8_token", "fp8_static") for sizes in (
        "2048:1e-5:8192:32:8:64:131072:16384", "2048:1e-6:6144:16:8:128:40960:16384:norms", "2048:1e-6:0:32:4:128:40960:16384:norms",
        "2560:1e-6:9728:32:8:128:40960:16384:norms", "3072:1e-5:8192:24:8:128:131072:16384", "3584:1e-6:18944:28:4:128:32768:16384",
        "4096:1e-5:14336:32:8:128:8192:16384", "4096:1e-6:12288:32:8:128:40960:16384:norms", "5120:1e-5:13824:40:8:128:32768:16384",
        "5120:1e-5:32768:32:8:128:32768:16384", "5120:1e-6:17408:40:8:128:40960:16384:norms", "5120:1e-6:25600:64:8:128:40960:16384:norms",
        "5120:1e-6:27648:40:8:128:32768:16384", "8192:1e-5:28672:64:8:128:8192:16384", "8192:1e-6:29568:64:8:128:8192:16384",
        "4096:1e-5:7168:16:4:128:8192:16384:part", "4096:1e-6:6144:16:4:128:40960:16384:norms:part", "5120:1e-6:8704:20:4:128:40960:16384:norms:part",
        *(f"5120:1e-6:{25600 // n}:{64 // n}:{8 // n}:128:40960:16384:norms:part" for n in (2, 4, 8)),
        *(f"8192:1e-5:{28672 // n}:{64 // n}:{8 // n}:128:8192:16384:part" for n in (2, 4, 8)))),
)
# Qwen2.5 0.5B to 72B with weights in 4 bits, as vLLM 0.33 has them.
BIASED = tuple(f"{sizes}:{positions}:{tokens}:bias{of_type}" for sizes in (
    "896:1e-6:4864:14:2:64", "1536:1e-6:8960:12:2:128", "2048:1e-6:11008:16:2:128", "3584:1e-6:18944:28:4:128", "5120:1e-6:13824:40:8:128",
    "8192:1e-6:29568:64:8:128") for positions in (32768, 131072) for tokens in (16384, 8192) for of_type in ("", ":fp16"))
GPT_OSS = tuple(f"2880:1e-5:0:64:8:64:131072:{tokens}:gpt_oss" for tokens in (16384, 8192))  # GPT-OSS-20B, 120B, of vLLM 0.33, too
# How the symbol of vLLM's write of keys and values spells the type, the pointers to it, and its end.
WRITTEN_AS = {"bf16": ("13__nv_bfloat16S1_", "S5_PT0_S7_", "SB_i"), "fp16": ("tt", "S4_PT0_S6_", "SA_i")}
# Versions of vLLM and SGLang, the Triton of the PyTorch that each asks for, and of which sizes products of experts are compiled: rows, width of
# the activation, experts that a token has, and all.
EXPERTS = (*(("vllm", version, "3.6.0") for version in ("0.20.2", "0.22.1", "0.24.0", "0.25.0", "0.26.0")),
           *(("vllm", version, "3.7.1") for version in ("0.28.0", "0.30.0", "0.31.0", "0.32.0")), ("vllm", "0.33.0", "3.8.0"),
           ("sglang", "0.5.20", "3.7.1"), ("sglang", "0.5.21", "3.7.1"), ("sglang", "0.5.22", "3.8.0"), ("sglang", "0.5.23", "3.8.0"))
EXPERT_SIZES = "2048:768:8:128"  # Qwen3-30B-A3B
EXPERT_CONFIGS = ("E=128,N=768,device_name=NVIDIA_H200.json", "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json")
EXPERT_SOURCES = {"vllm": "vllm/model_executor/layers/fused_moe/fused_moe.py", "sglang": "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"}
REDUCED = (4096,)  # rows of config/shared/reduce_sum_rmsnorm
EXPERT_SUMS = {(2048, 1e-6): 8, (4096, 1e-5): 2}  # of rows of config/shared/moe_sum/norm_sizes.table: hidden size and epsilon, a token's experts
SGLANG_FP8_BLOCKS = ("2048", "2560", "4096", "5120", "7168")  # hidden sizes of Qwen3 and DeepSeek-V3, whose weights are in fp8 with blocks
SGLANG_EXPERT_SUMS = ("2048",)  # larger models have several GPUs, whose sums are added up in between
# Versions whose sampling is compiled: in between it is as in one of them.
SAMPLING = ("0.6.18", "0.7.2.post1", "0.7.4")
SGL_SAMPLING = "0.3.21"  # whose wheel has it compiled, as of FlashInfer before 0.5
# As flashinfer/jit/attention fills in its templates: bfloat16, and no window, softcap, rotary embedding or slopes.
DECODE_VALUES = {
    "additional_params_decl": "float* maybe_alibi_slopes; double logits_soft_cap, sm_scale, rope_rcp_scale, rope_rcp_theta;",
    "additional_func_params": "", "additional_params_setter": "", "variant_decl": "#include <flashinfer/attention/variants.cuh>",
    "variant_name": "DefaultAttention<false, false, false, false>", "idtype": "int32_t", "pos_encoding_mode": "PosEncodingMode::kNone",
    "use_sliding_window": "false", "use_logits_soft_cap": "false"}
DECODE_FLAGS = ("-std=c++17", "-O3", "-use_fast_math", "-DNDEBUG", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a",
                *(f"-DFLASHINFER_ENABLE_{name}" for name in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FP4_E2M1")))
# Other folders' kernels that a folder's patterns ask for, too: a norm of vLLM is one launch with cuBLAS's sum before it.
ALSO = {"vllm": ("cublas",)}
MOST_SYMBOL_BYTES = 500  # longer ones are CUTLASS's, and would be most of the table
MOST_INSTANCES = 100  # of one template in one wheel; of more, a sample is kept
SAMPLE = 10


def rows(engine):
    for line in (HERE / "engines.table").read_text().splitlines():
        if line and not line.startswith("#") and engine in (None, line.split()[0]):
            yield line.split()


def wheel_of(package, version):
    stem = f"{package.replace('-', '_')}-{version}-"
    found = lambda: next(WHEELS.glob(stem + "*.whl"), None)
    if not found():
        WHEELS.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", WHEELS,
                        f"{package}=={version}"], check=True)
    return found()


def cubins(nodes):
    """Every cubin of what `fibshim inspect` shows, however deep."""
    for node in nodes:
        if node.get("format") == "cubin":
            yield node
        inner = [node["image"]] if isinstance(node.get("image"), dict) else []
        yield from cubins(inner + node.get("entries", []) + node.get("fatbins", []) + node.get("cubins", []))


def hash_of(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def version_of(nvcc):
    return subprocess.run([nvcc, "--version"], check=True, capture_output=True).stdout


def without_code(ptx):
    """The kernels of a PTX text with empty bodies: names and parameters are left, and nothing is to be compiled."""
    head = "".join(re.findall(r"^\.(?:version|target|address_size) .*\n", ptx, re.MULTILINE))
    return head + "".join(f"{kernel}\n{{ ret; }}\n" for kernel in re.findall(r"^\.(?:visible|weak) \.entry \w+\([^)]*\)", ptx, re.MULTILINE))


def unpack(wheel, names, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if re.match(names, name)])


def unpack_flashinfer(wheel, folder):
    """What its just-in-time compiler is called with."""
    unpack(wheel, "flashinfer/data/(include|cccl)/", folder)
    data = folder / "flashinfer/data"
    return ["-std=c++17", "-arch=sm_90", f"-DFLASHINFER_VERSION={wheel.name.split('-')[1].split('.')[1]}",
            *(f"-I{data / path}" for path in ("include", "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust"))]


def unpack_sglang(wheel, folder):
    unpack(wheel, "sglang/kernels/jit/(csrc|include)/", folder)
    unpack(wheel_of(*TVM_FFI), "tvm_ffi/include/", folder)
    return ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a", "-DSGL_CUDA_ARCH=900",
            *(f"-I{folder / path}" for path in ("sglang/kernels/jit/csrc", "sglang/kernels/jit/include", "tvm_ffi/include"))]


COMPILED = {"flashinfer": unpack_flashinfer, "sglang": unpack_sglang}  # what compiles its kernels on the user's machine


def compile_kernels(engine, wheel):
    """What its just-in-time compiler makes of its headers, beside the wheel: names and parameters, without code."""
    nvcc, made, missing = os.environ.get("NVCC", "nvcc").split(":")[0], [], []
    for source in sorted(HERE.glob(f"{engine}_*.cu")):
        made.append(wheel.with_suffix(f".{hash_of(source.read_bytes(), version_of(nvcc))}.cubin"))
        if not made[-1].exists():
            missing.append((source, made[-1]))
    if missing:
        with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
            flags, ptx = COMPILED[engine](wheel, pathlib.Path(folder)), pathlib.Path(folder, "kernels.ptx")
            for source, cubin in missing:
                subprocess.run([nvcc, "-ptx", "-w", "-Xcicc", "-O0", *flags, "-o", ptx, source], check=True)
                ptx.write_text(without_code(ptx.read_text()))
                subprocess.run([nvcc, "-cubin", "-arch=sm_90a", "-o", f"{folder}/new", ptx], check=True)
                os.replace(f"{folder}/new", cubin)
    return made


def kernels_of(engine, wheel, glob, wanted):
    """Symbol -> "OFFSET:SIZE,..." of the kernels whose symbol `wanted` is found in, else of the families' kernels. With "code:" before it,
    behind the symbol stands the code."""
    functions = collections.defaultdict(dict)
    with_code, wanted = (wanted or "").startswith("code:"), wanted and wanted.removeprefix("code:")
    with tempfile.TemporaryDirectory(dir=WHEELS) as folder, zipfile.ZipFile(wheel) as archive:
        if glob == "-":
            paths = compile_kernels(engine, wheel)
        else:
            names = [name for name in archive.namelist() if fnmatch.fnmatch(name, glob)]
            archive.extractall(folder, names)
            paths = [os.path.join(folder, name) for name in names]
        # In the mangled name are the words, too.
        words = wanted or "(?i:" + "|".join(family.pattern for family in FAMILIES.values()) + ")"
        for path in paths:
            out = subprocess.run([FIBSHIM, "inspect", "--json", "--kernel", f"re:.*?(?:{words}).*", path], check=True,
                                 capture_output=True).stdout
            for cubin in cubins(json.loads(out)["files"]):
                for kernel in cubin["kernels"]:
                    name = kernel["demangled"] or kernel["name"]
                    if re.search(wanted, kernel["name"]) if wanted else len(kernel["name"]) <= MOST_SYMBOL_BYTES and family_of(name):
                        functions[kernel["name"] if wanted else function_name(name)][kernel["name"] + f" {cubin['code']}" * with_code] = ",".join(
                            f"{param['offset']}:{param['size']}" for param in kernel["params"]) or "-"
    kernels = {}
    for instances in functions.values():
        step = len(instances) // SAMPLE if len(instances) > MOST_INSTANCES else 1
        kernels.update(sorted(instances.items())[::step])
    return kernels


def read(engine):
    def kernels_of_row(row):
        engine, package, version, glob, *wanted = row
        return row, kernels_of(engine, wheel_of(package, version), glob, *wanted or [None])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(kernels_of_row, rows(engine)))
    versions = collections.defaultdict(lambda: collections.defaultdict(list))
    for (folder, package, version, *_), kernels in found:
        print(f"{package} {version}: {len(kernels)} kernels", flush=True)
        for symbol, params in kernels.items():
            versions[folder][symbol, params].append(f"{package}-{version}")
    for folder, kernels in versions.items():
        lines = [f"{','.join(origin)} {params} {symbol}" for (symbol, params), origin in sorted(kernels.items())]
        (HERE / f"data/{folder}.table").write_text(f"fibshim kernels 1: {folder}\n" + "\n".join(lines) + "\n")


def kernels_of_recording(path):
    """Symbol, "OFFSET:SIZE,..." and code of a recording's kernels; without codes of what tests/gpu/cublas_versions.py has dumped."""
    records = list(map(json.loads, open(path)))
    for product in records[0].get("products", {}).values():
        for name, values in product.get("kernels", []):
            yield name, ",".join(f"{offset}:{len(value) // 2}" for offset, value in values), None
    for kernel in records:
        if kernel.get("type") == "kernel":
            yield (kernel["symbol"], ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"]) or "-",
                   kernel["image"]["code"])


def recorded(engine, version, recordings):
    """Kernels without a mangled name come from a just-in-time compiler: the code tells them apart. With cuBLAS's products
    goes the kernel that adds their parts up."""
    table = HERE / f"data/{engine}.recorded"
    head, *lines = table.read_text().splitlines() if table.exists() else [f"fibshim kernels 1: {engine}"]
    lines = {line for line in lines if line.split()[0] != version}
    for path in recordings:
        for name, params, code in kernels_of_recording(path):
            is_product = name.startswith(("nvjet_", "_ZN8cublasLt19splitKreduce_kernel"))
            is_compiled = code and not name.startswith("_Z") and (name.startswith(("triton_", "nvjet_")) or family_of(name))
            # Compiled on the user's machine, under their names.
            is_of_library = name.startswith(("_ZN12tensorrt_llm7kernels19fp8_blockscale_gemm", "_ZN9deep_gemm"))
            if (is_compiled or is_product or is_of_library) and is_product == (engine == "cublas"):
                lines.add(f"{version} {params} {name}" + (f" {code}" if is_compiled else ""))
    table.write_text("\n".join([head, *sorted(lines)]) + "\n")


def sizes_of(table):
    """The first column of a table of config/shared."""
    lines = (HERE.parent.parent / "config/shared" / table).read_text().splitlines()
    return [line.split()[0] for line in lines if line[:1].isdigit()]


def compile_cute(version, dsl, environment, kinds):
    """The folder with the cubins of these kinds and sizes."""
    script, wheel = HERE / "cute_norms.py", wheel_of("flashinfer-python", version)
    made = CUTE_NORMS / f"{version}-{dsl}-{hash_of(script.read_bytes(), json.dumps(kinds).encode())}"
    if made.exists():
        return made
    CUTE_NORMS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CUTE_NORMS) as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if re.match("flashinfer/(norm|cute_dsl)/", name)])
        new = pathlib.Path(folder, "new")
        new.mkdir()
        for kind, sizes in kinds.items():
            subprocess.run([environment / "bin/python", script, folder, new, kind, ",".join(sizes)], check=True)
        new.rename(made)
    return made


def cute():
    """The code tells what no launch says, such as Gemma's weight bias: it stands in the tables of the patterns."""
    kinds = {kind: sizes_of(f"{kind.replace('fused_add_', '') if 'quant' in kind else kind}/sizes.table") for kind in
             ("rmsnorm", "fused_add_rmsnorm", "rmsnorm_quant", "fused_add_rmsnorm_quant")}
    kinds["qk_rmsnorm"] = ["64", "128", "256", "512"]
    kernels, codes, by_size = (collections.defaultdict(kind) for kind in (list, set, set))
    rewritten = {"moe_sum_fused_add_rmsnorm": SGLANG_EXPERT_SUMS, "fused_add_rmsnorm_then_quant": SGLANG_FP8_BLOCKS}  # tables of config/sglang
    for version, dsl in CUTE:
        environment = BUILD / f"cute-{dsl}"
        if not environment.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            name, bracket, extra = dsl.partition("[")
            subprocess.run([environment / "bin/pip", "install", "-q", f"nvidia-cutlass-dsl{bracket}{extra}=={name}",
                            "apache-tvm-ffi"], check=True)
        paths = sorted(compile_cute(version, dsl, environment, kinds).glob("*.cubin"))
        out = subprocess.run([FIBSHIM, "inspect", "--json", *paths], check=True, capture_output=True).stdout
        for path, cubin in zip(paths, json.loads(out)["files"], strict=True):
            kernel, = cubin["kernels"]
            params = ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"])
            kernels[params, kernel["name"], cubin["code"]].append(f"flashinfer-python-{version}")
            kind, dtype, size, bias, how, _ = path.stem.split(".")
            codes[kind, dtype, bias, how].add(cubin["code"])
            if (kind, dtype, bias, how) == ("fused_add_rmsnorm", "bfloat16", "0", "dense"):
                by_size[size].add(cubin["code"])
    lines = [f"{','.join(dict.fromkeys(origin))} {' '.join(key)}" for key, origin in sorted(kernels.items())]
    (HERE / "data/flashinfer.recorded").write_text("fibshim kernels 1: flashinfer\n" + "\n".join(lines) + "\n")
    head = f"# Made by `tests/engines/engines.py cute`: the codes of CuTe-DSL {', '.join(sorted({dsl for _, dsl in CUTE}))} for sm_90a."
    listed = lambda found: ", ".join(f'"{code}"' for code in sorted(found))
    for name, sizes in rewritten.items():
        table = [f"{size} {listed(by_size[size])}" for size in sorted(sizes)]
        (HERE.parent.parent / f"config/sglang/{name}.table").write_text("\n".join([head, "hidden_size codes", *table]) + "\n")
    for kind in kinds:
        table = [head,
                 "gemma family bias type dtype suffix cute_type rows bytes shape stride0 stride1 stride2 codes"]
        for (of, dtype, bias, how), found in sorted(codes.items()):
            if of != kind:
                continue
            gemma = ("-", "-") if bias == "0" else ("gemma-", "gemma_")
            suffixes = CUTE_TYPES[dtype]
            table.append(" ".join((*gemma, bias, suffixes[0], dtype, *suffixes[1:], how, *CUTE_ROWS[how], listed(found))))
        (HERE.parent.parent / f"config/flashinfer/cute_{kind}.table").write_text("\n".join(table) + "\n")


def compile_decode(data, of_type, head_dim, nvcc, cubin):
    values = {**DECODE_VALUES, **dict.fromkeys(("head_dim_qk", "head_dim_vo"), str(head_dim)),
              **dict.fromkeys(("dtype_q", "dtype_kv", "dtype_o"), DECODE_TYPES[of_type])}
    with tempfile.TemporaryDirectory() as folder:
        for template, name in (("customize_config", "config.inc"), ("kernel_inst", "kernel.cu")):
            text = (data / f"csrc/batch_decode_{template}.jinja").read_text()
            filled = re.sub(r"\{\{ *(\w+) *\}\}", lambda found: values[found[1]], text)
            pathlib.Path(folder, f"batch_decode_{name}").write_text(filled)
        includes = [folder, *(data / path for path in ("include", "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust"))]
        subprocess.run([nvcc, "-cubin", "-w", *DECODE_FLAGS, *(f"-I{path}" for path in includes), "-o", cubin,
                        f"{folder}/batch_decode_kernel.cu"], check=True)


def decode_cubins(version):
    """Head size, threads, type and cubin, with each nvcc."""
    wheel, made, missing = wheel_of("flashinfer-python", version), {}, {}
    for nvcc in os.environ.get("NVCC", "nvcc").split(":"):
        compiled_by = hash_of(version_of(nvcc), repr((DECODE_VALUES, DECODE_FLAGS)).encode())
        for key in itertools.product(DECODE_TYPES, DECODE_THREADS, [compiled_by]):
            made[key] = FLASHINFER_DECODE / ".".join(map(str, (version, *key, "cubin")))
            if not made[key].exists():
                missing[key] = nvcc
    if missing:
        FLASHINFER_DECODE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FLASHINFER_DECODE) as folder, zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if re.match("flashinfer/data/(include|csrc|cccl)/", name)])
            for key, nvcc in missing.items():
                compile_decode(pathlib.Path(folder, "flashinfer/data"), *key[:2], nvcc, f"{folder}/new")
                os.replace(f"{folder}/new", made[key])
    return [(head_dim, DECODE_THREADS[head_dim], of_type, path) for (of_type, head_dim, _), path in made.items()]


def decode():
    """The type of queries, keys and values stands in no name and no argument: the code tells it. What the compilers of other machines
    made of these versions stays in the tables."""
    recorded_table, codes_table = HERE / "data/flash_attention.recorded", HERE.parent.parent / "config/flash_attention/planned.table"
    kernels, codes, kept = collections.defaultdict(dict), collections.defaultdict(set), set()
    origins = {f"flashinfer-python-{version}": None for version in DECODE}
    for line in recorded_table.read_text().splitlines()[1:]:
        versions, *key = line.split()
        for version in versions.split(","):
            if version in origins:
                kernels[tuple(key)][version] = None
                kept.add(key[-1])
    for line in codes_table.read_text().splitlines()[2:]:
        head_dim, threads, of_type, listed = line.split(maxsplit=3)
        codes[int(head_dim), int(threads), of_type].update(kept & set(json.loads(f"[{listed}]")))
    for version in DECODE:
        for head_dim, threads, of_type, path in decode_cubins(version):
            out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, capture_output=True).stdout
            cubin, = json.loads(out)["files"]
            codes[head_dim, threads, of_type].add(cubin["code"])
            for kernel in cubin["kernels"]:
                if "BatchDecodeWithPagedKVCacheKernel" in kernel["name"]:
                    params = ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"])
                    kernels[params, kernel["name"], cubin["code"]][f"flashinfer-python-{version}"] = None
    lines = [f"{','.join(version for version in origins if version in of)} {' '.join(key)}" for key, of in sorted(kernels.items())]
    recorded_table.write_text("fibshim kernels 1: flash_attention\n" + "\n".join(lines) + "\n")
    table = [f"# Made by `tests/engines/engines.py decode`: the codes of FlashInfer {', '.join(DECODE)} for sm_90a.", "head_dim threads types codes"]
    for key, found in sorted(codes.items()):
        table.append(" ".join(map(str, key)) + " " + ", ".join(f'"{code}"' for code in sorted(found)))
    codes_table.write_text("\n".join(table) + "\n")


def compile_inductor(version):
    """The folder with the cubins of these models, and its index."""
    script, environment = HERE / "inductor_kernels.py", BUILD / f"torch-{version}"
    models = MODELS + (BIASED + GPT_OSS if version == TORCH[-1] else ())
    made = INDUCTOR / f"{version}-{hash_of(script.read_bytes(), repr(models).encode())}"
    if not made.exists():
        if not environment.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            subprocess.run([environment / "bin/pip", "install", "-q", f"torch=={version}"], check=True)
        INDUCTOR.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=INDUCTOR) as folder:
            subprocess.run([environment / "bin/python", "-W", "ignore", script, f"{folder}/new", *models], check=True)
            shutil.rmtree(f"{folder}/new/triton")
            for old in INDUCTOR.glob(f"{version}-*"):
                shutil.rmtree(old)
            os.replace(f"{folder}/new", made)
    return made, json.loads((made / "index.json").read_text())


def inductor():
    """The code tells what no launch says: type, sizes of activations and rotary embeddings, and epsilon."""
    kernels, codes = collections.defaultdict(dict), collections.defaultdict(lambda: collections.defaultdict(set))
    for version in TORCH:
        made, index = compile_inductor(version)
        out = subprocess.run([FIBSHIM, "inspect", "--json", *(made / one["file"] for one in index)], check=True, capture_output=True).stdout
        for one, cubin in zip(index, json.loads(out)["files"], strict=True):
            kernel, = cubin["kernels"]
            params = ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"])
            kernels[params, one["name"], cubin["code"]][f"torch-{version}"] = None
            sizes = one["sizes"]
            if "positions" in sizes:  # of all of them
                sizes = {name: size for name, size in sizes.items() if name != "positions"}
            codes[one["kind"], one["type"]][tuple(sizes.values())].add(cubin["code"])
    lines = [f"{','.join(origin)} {' '.join(key)}" for key, origin in sorted(kernels.items())]
    (HERE / "data/vllm.compiled").write_text("fibshim kernels 1: vllm\n" + "\n".join(lines) + "\n")
    write_inductor_tables(codes)


def write_inductor_tables(codes):
    """`codes`: by kind and type, and by sizes."""
    def write(table, head, found, versions=TORCH):
        listed = [" ".join((*map(str, row), *(",".join(f'"{code}"' for code in sorted(of)) for of in lists))) for row, *lists in found]
        (HERE.parent.parent / f"config/vllm/{table}.table").write_text(
            f"# Made by `tests/engines/engines.py inductor`: the codes of PyTorch {', '.join(versions)} for sm_90.\n" + "\n".join([head, *listed]) + "\n")

    typed = lambda label, of_type: label if of_type == "bf16" else f"{label.rstrip('-')}-{of_type}"
    norms_of = lambda kind, of_type: [((hidden, eps, typed("-" if eps == 1e-5 else f"-eps{-round(math.log10(eps))}", of_type)), of)
                                      for (hidden, eps), of in sorted(codes[kind, of_type].items())]
    in_fp8 = lambda kind: [f"{kind}_{scales}" for scales in ("fp8_per_token", "fp8_static")]
    for kind in ("add_rms_norm", "add2_rms_norm", "add2_rms_norm_apart", "add2_rms_norm_sum"):
        write(f"inductor_{kind}", "hidden_size eps label types codes",
              [((*norm, of_type), of) for of_type in WRITTEN_AS for norm, of in norms_of(kind, of_type)])
    for kind in ("rms_norm", "add_rms_norm_copy", "norm_add_rms_norm", "norm_add2_rms_norm", "norm_add2_rms_norm_sum",
                 *in_fp8("rms_norm"), *in_fp8("add_rms_norm"), *in_fp8("add2_rms_norm_sum")):
        write(f"inductor_{kind}", "hidden_size eps label codes", norms_of(kind, "bf16"))
    for kind in ("add_rms_norm", "add2_rms_norm", "add2_rms_norm_sum"):
        norms = norms_of(kind, "bf16")
        write(f"splitk_reduce_{kind}", "hidden_size eps label codes", [norm for norm in norms if norm[0][0] in REDUCED])
        if kind != "add_rms_norm":
            write(f"moe_sum_{kind}", "hidden_size eps topk label codes",
                  [((*norm[:2], EXPERT_SUMS[norm[:2]], norm[2]), of) for norm, of in norms if norm[:2] in EXPERT_SUMS])
    for kind in ("silu_and_mul", "gelu_tanh_and_mul"):
        write(f"inductor_{kind}", "hidden_size width types codes",
              [((2 * width, width, of_type), of) for of_type in WRITTEN_AS for (width,), of in sorted(codes[kind, of_type].items())])
    for kind in in_fp8("silu_and_mul"):
        write(f"inductor_{kind}", "hidden_size width codes", [((2 * width, width), of) for (width,), of in sorted(codes[kind, "bf16"].items())])
    write("inductor_quant_fp8_per_token", "hidden_size codes", sorted((sizes, of) for sizes, of in codes["quant_fp8_per_token", "bf16"].items()))
    alike = collections.defaultdict(list)  # rows of many sizes, which such a code does not tell apart
    for (size,), of in codes["quant_fp8_static", "bf16"].items():
        alike[frozenset(of)].append(size)
    write("inductor_quant_fp8_static", "hidden_size codes", sorted(((math.gcd(*sizes),), of) for of, sizes in alike.items()))
    queries, keys = codes["rope_query", "bf16"], codes["rope_key", "bf16"]
    label = lambda head: "-" if head == 128 else f"-d{head}"
    slices = [((row, 0, q_heads, head, label(head)), of) for (row, q_heads, _, head), of in queries.items()]
    slices += [((row, head * q_heads, kv_heads, head, label(head)), of) for (row, q_heads, kv_heads, head), of in keys.items()]
    write("inductor_rope", "row first heads head_size label codes", sorted(slices))
    # Where two models have rows of the same size, heads tell them apart.
    together = {}
    for sizes in sorted({sizes for of_type in WRITTEN_AS for kind in ("rope_query", "rope_both") for sizes in codes[kind, of_type]}):
        together[sizes] = label(sizes[-1]) if not any(sizes[::3] == other[::3] for other in together) else f"-q{sizes[1]}"
    appended = lambda kind: [(of_type, *one) for of_type in WRITTEN_AS for one in sorted(codes[kind, of_type].items())]
    with_type = lambda label, of_type: (typed(label, of_type), of_type, *WRITTEN_AS[of_type])
    named = lambda sizes, of_type: (*sizes, *with_type("-" if sizes[-1] == "-" else f"-gemma-d{sizes[3]}", of_type))
    types = "types mangled pointers end"
    for form, label_of, versions in (("", together.get, TORCH), ("_float", lambda sizes: f"-float-d{sizes[-1]}", TORCH[-1:])):
        write(f"inductor_rope_append{form}", f"row order query key q_heads kv_heads head_size label {types} first_codes second_codes",
              [((sizes[0], order, query, 1 - query, *sizes[1:], *with_type(label_of(sizes), of_type)),
                *(of, codes[f"rope_key{form}", of_type][sizes])[::1 - 2 * query])
               for of_type, sizes, of in appended(f"rope_query{form}") for order, query in (("-", 0), ("-key-first", 1))], versions)
    write("inductor_bias_rope_append", f"row q_heads kv_heads head_size label {types} key_codes bias_codes query_codes",
          [((*sizes, *with_type(label(sizes[-1]), of_type)), of, *(codes[kind, of_type][sizes] for kind in ("add_bias", "rope_query_biased")))
           for of_type, sizes, of in appended("rope_key_bias")], TORCH[-1:])
    write("inductor_rope_both_append", f"row q_heads kv_heads head_size label {types} codes",
          [((*sizes, *with_type(together[sizes], of_type)), of) for of_type, sizes, of in appended("rope_both")])
    write("inductor_qk_norm_rope_append", f"row q_heads kv_heads head_size eps family label {types} sums_codes codes",
          [(named(sizes, of_type), codes["qk_sums", of_type][sizes[:4]], of) for of_type, sizes, of in appended("qk_rope_both")])
    orders = (("-", 0, 1), ("-key-first", 1, 0))
    write("inductor_qk_norm_rope_apart_append",
          f"row order query key q_heads kv_heads head_size eps family label {types} sums_codes first_codes second_codes",
          [((sizes[0], order, 1 + query, 1 + key, *named(sizes, of_type)[1:]), codes["qk_sums", of_type][sizes[:4]],
            *(of, codes["qk_rope_key", of_type][sizes])[::key - query])
           for of_type, sizes, of in appended("qk_rope_query") for order, query, key in orders])
    write("inductor_qk_norm_rope_both_append", f"row q_heads kv_heads head_size eps family label {types} codes",
          [(named(sizes, of_type), of) for of_type, sizes, of in appended("qk_norm_rope_both")])
    write("inductor_qk_norm_rope_whole_append", f"row order query key q_heads kv_heads head_size eps family label {types} first_codes second_codes",
          [((sizes[0], order, query, key, *named(sizes, of_type)[1:]), *(of, codes["qk_norm_rope_key", of_type][sizes])[::key - query])
           for of_type, sizes, of in appended("qk_norm_rope_query") for order, query, key in orders])


def compile_experts(engine, version, triton):
    """The folder with the cubins, and its index. Of SGLang's tables of sizes that of the newest Triton, as SGLang takes it if its own has none."""
    script, environment = HERE / "expert_kernels.py", BUILD / f"triton-{triton}"
    made = BUILD / "experts" / f"{engine}-{version}-{hash_of(script.read_bytes(), EXPERT_SIZES.encode())}"
    if not made.exists():
        if not environment.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            subprocess.run([environment / "bin/pip", "install", "-q", f"triton=={triton}"], check=True)
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder, zipfile.ZipFile(wheel_of(engine, version)) as archive:
            configs = [max((name for name in archive.namelist() if name.replace(" ", "").endswith("/" + wanted)),
                           key=lambda name: [int(number) for number in re.findall(r"\d+", name.split("/")[-2])]) for wanted in EXPERT_CONFIGS]
            source, *configs = (archive.extract(name, folder) for name in (EXPERT_SOURCES[engine], *configs))
            subprocess.run([environment / "bin/python", script, f"{folder}/new", source, EXPERT_SIZES, *configs], check=True)
            for old in made.parent.glob(f"{engine}-{version}-*"):
                shutil.rmtree(old)
            os.replace(f"{folder}/new", made)
    return made, json.loads((made / "index.json").read_text())


def experts():
    """The code tells what no launch says: type, quantisation, and which expert's token is which row."""
    kernels, codes = (collections.defaultdict(lambda: collections.defaultdict(dict)) for _ in range(2))
    _, _, topk, number = EXPERT_SIZES.split(":")
    for engine, version, triton in EXPERTS:
        made, index = compile_experts(engine, version, triton)
        out = subprocess.run([FIBSHIM, "inspect", "--json", *(made / one["file"] for one in index)], check=True, capture_output=True).stdout
        for one, cubin in zip(index, json.loads(out)["files"], strict=True):
            kernel, = cubin["kernels"]
            params = ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"])
            kernels[engine][params, kernel["name"], cubin["code"]][f"{engine}-{version}"] = None
            sizes = ",".join(str(param["size"]) for param in kernel["params"])
            of = codes[engine][one["is_fp8"], one["is_naive"], one["product"]].setdefault((sizes, one["block_size"], *one["arguments"]), {})
            of.setdefault("codes", set()).add(cubin["code"])
            of["version"] = version
    for engine, of_engine in kernels.items():
        lines = [f"{','.join(origin)} {' '.join(key)}" for key, origin in sorted(of_engine.items())]
        (HERE / f"data/{engine}.experts").write_text(f"fibshim kernels 1: {engine}\n" + "\n".join(lines) + "\n")
    for engine, of_engine in codes.items():
        newest = [version for of, version, _ in EXPERTS if of == engine][-1]
        for (is_fp8, is_naive, product), forms in of_engine.items():
            named = {"n": "N", "k": "K", "length": "EM", "choices": "num_valid_tokens", "sorted": "sorted_token_ids_ptr", "expert_ids": "expert_ids_ptr",
                     "used": "num_tokens_post_padded_ptr", **{f"stride_{of}": f"stride_{of}" for of in ("am", "be", "bn", "cm", *(("asm", "bse", "bsn") if is_fp8 else ()))},
                     **({"scales": "a_scale_ptr", "weight_scales": "b_scale_ptr", "weights_at": "topk_weights_ptr"} if is_fp8 else {})}
            table = [f"# Made by `tests/engines/engines.py experts`: the codes of {engine} "
                     f"{', '.join(version for of, version, _ in EXPERTS if of == engine)} for sm_90.",
                     " ".join(["label params topk experts block_size weights", *named, "codes"])]
            for (sizes, block, *arguments), of in forms.items():
                at = lambda name: str(arguments.index(name)) if name in arguments else "-"
                weights = f'"topk_weights":{{"arg":{at("topk_weights_ptr")},"dtype":"float32"}},' if product == "down" else "-"
                label = "-" if of["version"] == newest else f"-{of['version']}"
                table.append(" ".join([label, sizes, topk if product == "up" else "1", number, str(block), weights, *map(at, named.values()),
                                       ",".join(f'"{code}"' for code in sorted(of["codes"]))]))
            name = f"moe_gemm{'_block_scaled' * is_fp8}{'_each' * is_naive}{'_weighted' * (product == 'down')}"
            (HERE.parent.parent / f"config/{engine}/{name}.table").write_text("\n".join(table) + "\n")


def cubins_of_fatbins(data):
    """Those for sm_90 and sm_90a that a library holds uncompressed."""
    at = data.find(FATBIN)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, end = at + header, at + header + size
        while entry < end:
            (head, bytes_of_entry), (sm,) = struct.unpack_from("<IQ", data, entry + 4), struct.unpack_from("<I", data, entry + 28)
            image = data[entry + head:entry + head + bytes_of_entry]
            if sm == 90 and image[:4] == b"\x7fELF":
                yield image
            entry += head + bytes_of_entry
        at = data.find(FATBIN, at + 4)


def cubins_of_wheel(package, version, glob, wanted):
    """Those of its library that fit a regular expression."""
    with tempfile.TemporaryDirectory(dir=WHEELS) as folder, zipfile.ZipFile(wheel_of(package, version)) as archive:
        name, = fnmatch.filter(archive.namelist(), glob)
        with open(archive.extract(name, folder), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from (image for image in cubins_of_fatbins(data) if re.search(wanted, image))


def sampling():
    """As FlashInfer does itself at run time."""
    nvcc, source = os.environ.get("NVCC", "nvcc").split(":")[0], HERE / "sampling_instances.cu"
    FLASHINFER_SAMPLING.mkdir(exist_ok=True)
    made = FLASHINFER_SAMPLING / f"sgl-kernel-{SGL_SAMPLING}.wheel.cubin"
    if not made.exists():
        images = cubins_of_wheel("sgl-kernel", SGL_SAMPLING, "sgl_kernel/sm90/common_ops*.so", rb"SamplingFromProbKernel")
        image, = (image for image in images if struct.unpack_from("<I", image, 48)[0] & FOR_SM_90A)
        made.write_bytes(image)
    for version in SAMPLING:
        made = FLASHINFER_SAMPLING / f"{version}.{hash_of(source.read_bytes(), version_of(nvcc))}.cubin"
        if made.exists():
            continue
        with tempfile.TemporaryDirectory(dir=FLASHINFER_SAMPLING) as folder, zipfile.ZipFile(wheel_of("flashinfer-python", version)) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if re.match("flashinfer/data/(include|cccl)/", name)])
            data = pathlib.Path(folder, "flashinfer/data")
            includes = [data / path for path in ("include", "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust")]
            has_split_rows = b"SplitRowSamplingMode" in (data / "include/flashinfer/sampling.cuh").read_bytes()
            subprocess.run([nvcc, "-cubin", "-w", *DECODE_FLAGS, f"-DFLASHINFER_VERSION={version.split('.')[1]}",
                            *(["-DHAS_SPLIT_ROWS"] if has_split_rows else []),
                            *(f"-I{path}" for path in includes), "-o", f"{folder}/new", source], check=True)
            os.replace(f"{folder}/new", made)


def attention():
    """Of kernels with the same tiles, those with paged keys and values that no tensor map describes; and those before and behind them."""
    _, package, version, glob, _ = [row for row in rows("flash_attention") if row[1] == "sglang-kernel"][-1]
    wanted = (rb"prepare_varlen_num_blocks_kernel|FlashAttnFwdCombineIN4cute5tupleIJNS3_1CILi(8EEENS5_ILi128|16EEENS5_ILi64)\w+(bfloat16|half)_t|"
              rb"NS6_IJNS7_ILi64EEE(NS7_ILi128EEESB_EEELi128|NS7_ILi192EEESA_EEELi64)ENS_(10bfloat16|6half)_tEfNS_4arch4Sm90ELb[01]ELb0ELb0ELb1ELb1ELb0")
    SGLANG_ATTENTION.mkdir(exist_ok=True)
    for number, image in enumerate(cubins_of_wheel(package, version, glob, wanted)):
        (SGLANG_ATTENTION / f"{version}.{number}.cubin").write_bytes(image)


def newest_of(paths):
    """By symbol, the versions of its tables that are the newest of their package there. What an engine compiles at run time has a
    table of its own, with the versions that were recorded."""
    newest = collections.defaultdict(set)
    for path in paths:
        folder, kernels, versions = path.name.split(".")[0], [], collections.defaultdict(set)
        for line in path.read_text().splitlines()[1:]:
            origins, _, symbol = line.split()[:3]
            kernels.append((symbol, [tuple(origin.rsplit("-", 1)) for origin in origins.split(",")]))
            for package, version in kernels[-1][1]:
                versions[package].add(version)
        number = lambda version: [int(part) for part in re.findall(r"\d+", version)]
        last = {(package, max(of, key=number)) for package, of in versions.items()}
        for symbol, origins in kernels:
            newest[symbol] |= {f"{folder} {'-'.join(origin)}" for origin in origins if origin in last}
    return newest


def older():
    """By folder, the patterns that are for older versions only."""
    found = collections.defaultdict(list)
    for line in (HERE / "older.table").read_text().splitlines():
        if line and not line.startswith("#"):
            folder, _, label = line.split()
            found[folder].append(re.compile(label))
    return found


def why_wrong(pattern, newest, for_older):
    """What is wrong with what a pattern fits; None: nothing."""
    if not pattern["fits"]:
        return f"fits nothing: {pattern['why_not']}"
    fits_newest = any(newest[kernel["symbol"]] & set(kernel["in"]) for kernel in pattern["fits"])
    is_for_older = any(label.fullmatch(pattern["label"]) for label in for_older)
    if fits_newest and is_for_older:
        return "fits the newest version: older.table has it as one for older versions only"
    return None if fits_newest or is_for_older else "fits nothing in the newest version"


def show(engine, is_verbose):
    """How many patterns are wrong, or fit kernels of their name only with other parameters."""
    problems, for_older = 0, older()
    for folder in dict.fromkeys(row[0] for row in rows(engine)):
        versions = [f"{folder} {package}-{version}" for _, package, version, *_ in rows(folder)]
        tables = [path for name in (folder, *ALSO.get(folder, ())) for path in sorted(HERE.glob(f"data/{name}.*"))]
        done = subprocess.run([FIBSHIM, "check", "--json", BUILD / "config" / folder,
                               *(word for path in tables for word in ("--against", path))], stdout=subprocess.PIPE, text=True)
        if not done.stdout:
            sys.exit(done.returncode or 1)  # which has said why
        against, newest = json.loads(done.stdout)["folders"][0]["against"], newest_of(tables)
        # With what was compiled at run time, of a recording.
        versions += sorted({version for pattern in against["patterns"] for kernel in pattern["fits"] for version in kernel["in"]}
                           - set(versions))
        print(f"\n{folder}: kernels that each pattern fits, in " + ", ".join(v.split()[1] for v in versions))
        for pattern in against["patterns"]:
            why = why_wrong(pattern, newest, for_older[folder])
            counts = [sum(version in kernel["in"] for kernel in pattern["fits"]) for version in versions]
            problems += bool(why or pattern["other_params"])
            print(f"  {pattern['label']:48}" + "".join(f"{count or '-':>4}" for count in counts) +
                  (f"  FAIL: {why}" if why else ""))
            for kernel in pattern["other_params"]:
                print(f"  FAIL: {pattern['label']}: not for its parameters, {kernel['params']}: {kernel['symbol']} in {', '.join(kernel['in'])}")
        unknown = collections.defaultdict(list)
        for kernel in against["unknown_kernels"]:
            if any(version.split()[0] == folder for version in kernel["in"]):
                name = demangle(kernel["symbol"])
                unknown[family_of(name) or "other"].append(name)
        print("  no pattern fits:")
        for family, names in sorted(unknown.items()):
            functions = collections.Counter(map(function_name, names))
            print(f"    {family}: " + ", ".join(f"{name} ({count})" for name, count in functions.most_common()))
            for name in names if is_verbose else []:
                print(f"      {name}")
    return problems


def compile_sglang(cubin, version):
    """Also its quantisation, beside the cubin, as NAME.quant.cubin."""
    with tempfile.TemporaryDirectory() as folder:
        flags = unpack_sglang(wheel_of("sglang", version), pathlib.Path(folder))
        for name, more, made in (("sglang_kernels", [], cubin), ("sglang_quant_kernels", ["--use_fast_math"], cubin.with_suffix(".quant.cubin"))):
            subprocess.run([os.environ.get("NVCC", "nvcc").split(":")[0], "-cubin", "-w", *flags, *more, "-o", made, HERE / f"{name}.cu"], check=True)


def everything(engine, is_verbose):
    read(engine)
    for step, *folders in ((cute, "flashinfer"), (decode, "flash_attention"), (inductor, "vllm"), (experts, "vllm", "sglang")):
        if engine and engine not in folders:
            continue
        try:
            step()
        except (subprocess.CalledProcessError, OSError) as error:  # no such package for this Python, no such compiler
            print(f"{step.__name__}: not on this machine, the table stays as it is: {error}", flush=True)
    return show(engine, is_verbose)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", "read", "show", "recorded", "cute", "decode", "inductor", "experts", "sampling", "attention", "sglang"])
    parser.add_argument("engine", nargs="?")
    parser.add_argument("version", nargs="?")
    parser.add_argument("recordings", nargs="*")
    parser.add_argument("-v", action="store_true", dest="is_verbose")
    args = parser.parse_args()
    if args.what == "recorded":
        recorded(args.engine, args.version, args.recordings)
    elif args.what == "sglang":
        compile_sglang(pathlib.Path(args.engine), args.version or [row[2] for row in rows("sglang") if row[1] == "sglang"][-1])
    elif args.what == "cute":
        cute()
    elif args.what == "decode":
        decode()
    elif args.what == "inductor":
        inductor()
    elif args.what == "experts":
        experts()
    elif args.what == "sampling":
        sampling()
    elif args.what == "attention":
        attention()
    elif args.what == "read":
        read(args.engine)
    else:
        act = everything if args.what == "all" else show
        problems = act(args.engine, args.is_verbose)
        if problems:
            sys.exit(f"{problems} patterns fit nothing, or what they should not")


main()
