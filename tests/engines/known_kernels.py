"""Which kernels of a profile the patterns of config folders know, by name.

A pattern's symbol is the mangled one, a profiler tells the demangled one, and nothing leads back. So `fibshim check --against`
is asked which symbols of the engines' kernels the patterns fit, as the shim would, and these are demangled as the profiler does
it. The names of what is compiled at run time (Triton, nvjet) are not mangled: for them a pattern's symbol is compared directly.
"""
import ctypes
import fnmatch
import json
import pathlib
import re
import subprocess

TABLES = pathlib.Path(__file__).parent / "data"


def demangle(symbol, library=ctypes.CDLL("libstdc++.so.6"), libc=ctypes.CDLL(None)):
    """With libstdc++'s own function, which PyTorch's profiler calls too; what it cannot demangle as it is."""
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status)) if symbol.startswith("_Z") else None
    if not text:
        return symbol
    try:
        return ctypes.string_at(text).decode()
    finally:
        libc.free(ctypes.c_void_p(text))


def normal(name):
    """One spelling of what demanglers spell differently."""
    return re.sub(r"\s+", "", name.replace("{anonymous}", "(anonymous namespace)"))


def without_sizes(name):
    """DeepGEMM compiles a kernel for each size, which is in its name."""
    return re.sub(r"\b\d+u\b", "", normal(name)) if "deep_gemm::" in name else None


def matcher_of(symbol):
    """What a pattern's symbol says of a name that is not mangled."""
    kind, _, body = symbol.partition(":")
    if kind == "re":
        return re.compile(re.sub(r"\(\?<(\w+)>", r"(?P<\1>", re.sub(r"\\k<(\w+)>", r"(?P=\1)", body))).fullmatch
    if kind in ("glob", "demangled"):
        return lambda name: fnmatch.fnmatchcase(name, body)
    return symbol.__eq__


def is_known_by(patterns):
    """Whether one of the patterns has a kernel, by the name that a profiler tells. The patterns are those of `check --json --against`."""
    symbols = {kernel["symbol"] for pattern in patterns for kernel in pattern["fits"]}
    # The profiler leaves very long symbols as they are.
    names = symbols | {normal(demangle(symbol)) for symbol in symbols}
    of_all_sizes = {without_sizes(name) for name in names} - {None}
    matchers = [matcher_of(symbol) for symbol in sorted({pattern["symbol"] for pattern in patterns})]
    return lambda name: (name in names or normal(name) in names or without_sizes(name) in of_all_sizes or
                         any(matches(name) for matches in matchers))


def is_known(fibshim, folders, libraries=()):
    """The same for folders of build/config: in the tables of published engines' kernels, and in libraries, which have all of theirs."""
    against = [*(path for folder in folders for path in sorted(TABLES.glob(f"{folder.name}.*"))), *libraries]
    words = [fibshim, "check", "--json", *folders, *(word for path in against for word in ("--against", path))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)  # exit code 1: a pattern fits none of these
    if done.returncode not in (0, 1):
        raise subprocess.CalledProcessError(done.returncode, words)
    return is_known_by([pattern for folder in json.loads(done.stdout)["folders"] for pattern in folder["against"]["patterns"]])
