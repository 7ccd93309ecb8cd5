"""Writes the config folders: one that finds out what the frameworks' kernels are called, and the one that
redirects them."""
import hashlib
import json
import os
import re
import shutil

from parts import HOSTS

SMS = (80, 90, 100)


def write(folder, name, value):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(value, file, indent=2)


# ---- looking for kernels

# Every kernel fits these symbols, and none the rest: at FIBSHIM_LOG=info the shim says of each what it has.
LOOKING = {"looking-for-params": {"symbol": "glob:*", "params": [1]},
           "looking-for-images": {"symbol": "glob:*", "image": ["xxh128:" + "0" * 32]}}


def write_looking_folder(folder, symbol):
    """`symbol`: of kernels whose launches are counted by their grids, in definitions grid_<x>."""
    for label, match in LOOKING.items():
        write(folder, f"patterns/{label}.json", {
            "label": label, "match": match, "axes": {}, "arguments": {}, "writes": [], "definition": "found"})
    write(folder, "patterns/looking-for-grids.json", {
        "label": "looking-for-grids", "match": {"symbol": "re:.*" + symbol + ".*"},
        "axes": {"blocks": {"grid": "x"}}, "arguments": {}, "writes": [], "definition": "grid_{blocks}"})


def found_grids(counted):
    """Launches -> blocks, of kernels that were launched that often."""
    return {count: int(definition.removeprefix("grid_")) for (definition, _), count in counted.items() if count}


class Finder:
    """Reads the shim's log as it grows."""

    line = re.compile(r"fibshim\[\d+\] info: (?P<symbol>.*): (?:"
                      r"fits the symbol of pattern looking-for-params, but its params are \[(?P<params>[\d, ]*)\]|"
                      r"pattern looking-for-images asks for another image; this one is (?P<image>xxh128:[0-9a-f]{32})(?:, its code .*)?|"
                      r"pattern looking-for-images asks for an image, and this one's is not known)$")

    def __init__(self, path):
        self.path = path
        self.read = 0

    def new_kernels(self):
        """What was looked up since the last call: dicts of symbol, params and image (None: not known)."""
        if not os.path.exists(self.path):
            return []
        with open(self.path) as file:
            file.seek(self.read)
            text = file.read()
            self.read = file.tell()
        kernels = []
        for line in text.splitlines():
            found = self.line.match(line)
            if found is None:
                continue
            # The patterns are tried one after the other: two lines in a row are about one kernel.
            if found["params"] is not None:
                key, value = "params", [int(size) for size in found["params"].split(",") if size]
            else:
                key, value = "image", found["image"]
            if not kernels or kernels[-1]["symbol"] != found["symbol"] or key in kernels[-1]:
                kernels.append({"symbol": found["symbol"]})
            kernels[-1][key] = value
        return kernels


# ---- redirecting them


def curated_kernel(part, n):
    """The replacement's name and cluster."""
    if part.redirected[n] == "double":
        return "double_f32", 1
    # From one cluster size to another, and from a cluster to none above.
    return ("plus_one_clustered_f32", 4) if "cluster" in part.name else ("plus_one_f32", 1)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def write_folder(folder, parts, kernels):
    """`kernels`: part's name -> n -> what was found."""
    images = [{"path": f"curated.sm_{sm}.cubin", "sha256": sha256(os.path.join(HOSTS, f"curated.sm_{sm}.cubin"))}
              for sm in SMS]
    os.makedirs(os.path.join(folder, "solutions"), exist_ok=True)
    for image in images:
        shutil.copy(os.path.join(HOSTS, image["path"]), os.path.join(folder, "solutions"))
    for part in parts:
        for n in part.redirected:
            name = part.definition(n)
            write(folder, f"definitions/{name}.json", {
                "name": name, "op_type": "elementwise", "description": "y = x + 1",
                "axes": {"n": {"type": "const", "value": n}},
                "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
                "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
                "reference": "def run(x):\n    return x + 1\n"})
            kernel, cluster = curated_kernel(part, n)
            write(folder, f"solutions/{name}.json", {
                "name": f"curated_{name}", "definition": name, "author": "fibshim",
                "spec": {"language": "cuda", "target_hardware": ["NVIDIA_H200"], "entry_point": kernel},
                "sources": [],
                "launch": {"kernel": kernel, "images": images, "grid": ["ceil_div(n, 256)", 1, 1],
                           "block": [256, 1, 1], "cluster": [cluster, 1, 1], "arguments": ["x", "y", "n"]}})
        for pattern in part.patterns(kernels.get(part.name)):
            label = part.name.replace("_", "-") + pattern.pop("suffix", "")
            write(folder, f"patterns/{label}.json", {
                "label": label, **pattern, "writes": ["y"], "definition": f"plus_one_{part.name}_n{{n}}"})
