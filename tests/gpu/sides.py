"""The sides of a test of rewrites: a process each, which makes the same inputs and keeps what its kernels wrote and how long they took."""
import os
import subprocess
import tempfile

from counters import read_counts


def run_side(command, environment):
    """Runs `command --child FILE`: what it saved in the file, and the launches by definition and outcome."""
    import torch
    with tempfile.TemporaryDirectory() as stats:
        file = os.path.join(stats, "out.pt")
        subprocess.run([*command, "--child", file], check=True, env={**os.environ, **environment, "FIBSHIM_STATS_DIR": stats})
        counts = read_counts(stats)
        return torch.load(file), counts


def by_outcome(counts):
    return {outcome: sum(n for (_, o), n in counts.items() if o == outcome) for _, outcome in counts}


def compare_sides(report, name, as_one, alone, others={}, most_that_differ=0, more_error=float("inf")):
    """One line of the report for a case, of which each side has "us", "error" and the "bytes" that it wrote. As one it must be no slower than
    alone and than `others` (us by name), of no output may more than a share of `most_that_differ` differ, and it may be further from
    float64 by a share of `more_error`. Returns what --out keeps of it."""
    differ = {what: (as_one["bytes"][what] != value).float().mean().item() for what, value in alone["bytes"].items() if value is not None}
    shown = " ".join(f"{what} {share:.1e}" for what, share in differ.items() if share)
    times = {"alone": alone["us"], **others}
    with report.phase(f"{name}: {as_one['us']:.2f} us; {', '.join(f'{side} {us:.2f}' for side, us in times.items())}; error "
                      f"{as_one['error']:.3e}, alone {alone['error']:.3e}; bytes that differ: {shown or 'none'}") as problems:
        problems += [f"of {what} {share:.1e} of the bytes differ" for what, share in differ.items() if share > most_that_differ]
        problems += [f"{side} is faster" for side, us in times.items() if us < as_one["us"]]
        if as_one["error"] > alone["error"] * (1 + more_error):
            problems.append("it is further from float64")
    return {"us": as_one["us"], **{f"{side}_us": us for side, us in times.items()}, "error": as_one["error"], "alone_error": alone["error"],
            "bytes_that_differ": differ}
