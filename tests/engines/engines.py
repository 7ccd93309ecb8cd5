#!/usr/bin/env python3
"""What the kernels of published engines are, and which of them the ready folders know.

  tests/engines/engines.py read [ENGINE]   gets the wheels of engines.table by pip into build/wheels, reads their
                                           kernels, and writes tests/engines/data/ENGINE.table
  tests/engines/engines.py show [ENGINE]   from those tables: which versions each pattern of build/config/ENGINE
                                           fits a kernel of, and, for each family, the kernels that no pattern
                                           fits (-v: their symbols)

  tests/engines/engines.py recorded ENGINE VERSION RECORDING...   writes what a run of the engine compiled, of a
                                           recording (fibshim record), to tests/engines/data/ENGINE.recorded

A table has symbols and parameters of the families below, no code: tests/engines/engines_test.sh works on it.
"""
import argparse
import collections
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).parent
BUILD = pathlib.Path(os.environ.get("BUILD", HERE.parent.parent / "build"))
WHEELS = pathlib.Path(os.environ.get("WHEELS", BUILD / "wheels"))
FIBSHIM = BUILD / "bin/fibshim"
# By the function's name, without template arguments; the first that fits. What fits none is left out.
FAMILIES = {name: re.compile(words, re.IGNORECASE) for name, words in {
    "": r"gemm|marlin|moe_q|moe_vec",
    "KV write": r"reshape_and_cache|concat_and_cache|store_kv|set_kv|kv_buffer|append_paged",
    "RoPE": r"rotary|rope",
    "quantised norm": r"norm\w*quant|quant\w*norm|norm.*_quant",
    "norm": r"rms_?norm|layer_?norm",
    "activation": r"act_and_mul|silu|gelu|activation_kernel|relu",
    "MoE routing": r"topk_?gating|group\w*_topk|moe_align|moe_sum|moe_?topk|expert",
    "sampling": r"sampl|top_?k|top_?p|penalt|softmax",
    "attention": r"paged_attention|merge_attn|merge_state|cascade|fmha|mla",
}.items()}
MOST_SYMBOL_BYTES = 500  # longer ones are CUTLASS's, and would be most of the table
MOST_INSTANCES = 100  # of one template in one wheel; of more, a sample is kept
SAMPLE = 10


def rows(engine):
    for line in (HERE / "engines.table").read_text().splitlines():
        if line and not line.startswith("#") and engine in (None, line.split()[0]):
            yield line.split()


def function_name(demangled):
    name = re.sub(r"^(void|std::enable_if.*?>::type) ", "", demangled.replace("(anonymous namespace)", ""))
    return re.split(r"[<(]", name, maxsplit=1)[0]


def family_of(demangled):
    name = function_name(demangled)
    return next((family for family, words in FAMILIES.items() if words.search(name)), None)


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


def compile_flashinfer(folder, version):
    """What its just-in-time compiler makes of its headers."""
    data = folder / "flashinfer/data"
    includes = [data / path for path in ("include", "cccl/libcudacxx/include", "cccl/cub", "cccl/thrust")]
    cubin = folder / "kernels.cubin"
    subprocess.run([os.environ.get("NVCC", "nvcc"), "-std=c++17", "-cubin", "-arch=sm_90", "-w", "-o", cubin,
                    f"-DFLASHINFER_VERSION={version.split('.')[1]}", *(f"-I{path}" for path in includes),
                    HERE / "flashinfer_kernels.cu"], check=True)
    return cubin


def kernels_of(wheel, glob, wanted):
    """Symbol -> "OFFSET:SIZE,..." of the kernels whose symbol `wanted` is found in, else of the families' kernels."""
    functions = collections.defaultdict(dict)
    with tempfile.TemporaryDirectory(dir=WHEELS) as folder, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatch.fnmatch(name, glob)]
        archive.extractall(folder, names)
        paths = [os.path.join(folder, name) for name in names]
        if glob.startswith("flashinfer/"):
            paths = [compile_flashinfer(pathlib.Path(folder), wheel.name.split("-")[1])]
        for path in paths:
            out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, capture_output=True).stdout
            for cubin in cubins(json.loads(out)["files"]):
                for kernel in cubin["kernels"]:
                    name = kernel["demangled"] or kernel["name"]
                    if re.search(wanted, kernel["name"]) if wanted else len(kernel["name"]) <= MOST_SYMBOL_BYTES and family_of(name):
                        functions[kernel["name"] if wanted else function_name(name)][kernel["name"]] = ",".join(
                            f"{param['offset']}:{param['size']}" for param in kernel["params"]) or "-"
    kernels = {}
    for instances in functions.values():
        step = len(instances) // SAMPLE if len(instances) > MOST_INSTANCES else 1
        kernels.update(sorted(instances.items())[::step])
    return kernels


def read(engine):
    versions = collections.defaultdict(lambda: collections.defaultdict(list))
    for folder, package, version, glob, *wanted in rows(engine):
        kernels = kernels_of(wheel_of(package, version), glob, *wanted or [None])
        print(f"{package} {version}: {len(kernels)} kernels", flush=True)
        for symbol, params in kernels.items():
            versions[folder][symbol, params].append(f"{package}-{version}")
    for folder, kernels in versions.items():
        lines = [f"{','.join(origin)} {params} {symbol}" for (symbol, params), origin in sorted(kernels.items())]
        (HERE / f"data/{folder}.table").write_text(f"fibshim kernels 1: {folder}\n" + "\n".join(lines) + "\n")


def recorded(engine, version, recordings):
    """Kernels without a mangled name come from a just-in-time compiler: the code tells them apart. With cuBLAS's products
    goes the kernel that adds their parts up."""
    lines = set()
    for path in recordings:
        for kernel in filter(lambda record: record["type"] == "kernel", map(json.loads, open(path))):
            code = kernel["image"]["code"]
            name = kernel["symbol"]
            is_compiled = code and not name.startswith("_Z") and (name.startswith(("triton_", "nvjet_")) or family_of(name))
            if is_compiled or name.startswith("_ZN8cublasLt19splitKreduce_kernel"):
                params = ",".join(f"{param['offset']}:{param['size']}" for param in kernel["params"]) or "-"
                lines.add(f"{version} {params} {name}" + (f" {code}" if is_compiled else ""))
    (HERE / f"data/{engine}.recorded").write_text(f"fibshim kernels 1: {engine}\n" + "\n".join(sorted(lines)) + "\n")


def demangle(symbols):
    out = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return out.splitlines()


def show(engine, is_verbose):
    for folder in dict.fromkeys(row[0] for row in rows(engine)):
        versions = [f"{folder} {package}-{version}" for _, package, version, *_ in rows(folder)]
        out = subprocess.run([FIBSHIM, "check", "--json", BUILD / "config" / folder, "--against",
                              HERE / f"data/{folder}.table", *(word for path in HERE.glob(f"data/{folder}.recorded")
                                                               for word in ("--against", path))], stdout=subprocess.PIPE, text=True).stdout
        against = json.loads(out)["folders"][0]["against"]
        print(f"\n{folder}: kernels that each pattern fits, in " + ", ".join(v.split()[1] for v in versions))
        for pattern in against["patterns"]:
            counts = [sum(version in kernel["in"] for kernel in pattern["fits"]) for version in versions]
            print(f"  {pattern['label']:48}" + "".join(f"{count or '-':>4}" for count in counts) +
                  ("" if any(counts) else f"  dead: {pattern['why_not']}"))
        unknown = collections.defaultdict(list)
        symbols = [kernel["symbol"] for kernel in against["unknown_kernels"]]
        for name in demangle(symbols):
            unknown[family_of(name)].append(name)
        print("  no pattern fits:")
        for family, names in sorted(unknown.items()):
            functions = collections.Counter(map(function_name, names))
            print(f"    {family}: " + ", ".join(f"{name} ({count})" for name, count in functions.most_common()))
            for name in names if is_verbose else []:
                print(f"      {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["read", "show", "recorded"])
    parser.add_argument("engine", nargs="?")
    parser.add_argument("version", nargs="?")
    parser.add_argument("recordings", nargs="*")
    parser.add_argument("-v", action="store_true", dest="is_verbose")
    args = parser.parse_args()
    if args.what == "recorded":
        recorded(args.engine, args.version, args.recordings)
    elif args.what == "read":
        read(args.engine)
    else:
        show(args.engine, args.is_verbose)


main()
