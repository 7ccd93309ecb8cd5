"""Times of solutions that a test measures beside what they replace, in the form of a folder's measurements.json.

`fibshim bench --keep-from FILE FOLDER` takes such a file into the folder, and fills in "images". Needs no GPU by itself.
"""
import json
import pathlib
import time

from expressions import evaluate

NOISE = 1.03  # what times of the same kernel differ by; `check` has the same


class KeptTimes:
    def __init__(self, folder):
        read = lambda kind: [json.loads(path.read_text()) for path in sorted(pathlib.Path(folder).glob(f"{kind}/**/*.json"))]
        self.axes = {one["name"]: one["axes"] for one in read("definitions")}
        self.solutions = {}
        for one in sorted(read("solutions"), key=lambda one: -one["launch"].get("benefit", 0)):
            self.solutions.setdefault(one["definition"], []).append(one)
        self.times = {}

    def solution_for(self, definition, **axes):
        """The solution that the folder has for these values of the variable axes, or None."""
        missing = [name for name, axis in self.axes[definition].items() if axis["type"] == "var" and name not in axes]
        if missing:
            raise ValueError(f"{definition}: no value of {', '.join(missing)}")
        values = {**{name: axis["value"] for name, axis in self.axes[definition].items() if axis["type"] == "const"}, **axes}
        return next((one for one in self.solutions.get(definition, ())
                     if all(evaluate(when, values) for when in one["launch"].get("when", ()))), None)

    def add(self, definition, original, us, original_us, **axes):
        """`axes`: the values of the definition's variable axes. Nothing is kept where no solution is for them. Of several inputs of one
        size it is the one at which ours is the slowest beside the original."""
        chosen = self.solution_for(definition, **axes)
        if chosen is None:
            return
        of_size = self.times.setdefault((definition, chosen["name"], original), {})
        key = tuple(sorted(axes.items()))
        if key not in of_size or us / original_us > of_size[key][0] / of_size[key][1]:
            of_size[key] = us, original_us

    def write(self, path, gpu, sm, driver):
        """`driver`: the CUDA version that it supports, such as "13.0"."""
        common = {"images": "0" * 64, "gpu": gpu, "sm": sm, "driver": driver, "date": time.strftime("%Y-%m-%d", time.gmtime()), "mode": "bench-graph"}
        measurements = [
            {"definition": definition, "solution": solution, **common, "original": original,
             "times": [{"axes": dict(axes), "us": round(us, 3), "original_us": round(original_us, 3)}
                       for axes, (us, original_us) in sorted(of_size.items())]}
            for (definition, solution, original), of_size in sorted(self.times.items())]
        pathlib.Path(path).write_text(json.dumps({"format": 1, "measurements": measurements}, indent=1) + "\n")

    def write_here(self, path):
        """Of this machine's GPU."""
        import ctypes
        import torch
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        major, minor = torch.cuda.get_device_capability()
        self.write(path, torch.cuda.get_device_name(), 10 * major + minor, f"{version.value // 1000}.{version.value % 1000 // 10}")


def finish(report, args, kept, table):
    """Writes what --keep and --out ask for, and ends the report: the exit code."""
    if args.keep:
        kept.write_here(args.keep)
    if args.out:
        args.out.write_text(json.dumps(table, indent=1))
    return report.finish()
