#!/usr/bin/env python3
"""What calls about graphs cost with the shim, and without it: tests/bench/graph_costs.py [BUILD [NODES [EXECS [REPEATS]]]]

On the simulated driver, or with FIBSHIM_TEST_REAL_DRIVER=1 on the machine's own. The host is `conform graph_costs`
(tests/conformance/hosts/graph_cost_cases.cc); runs with and without the shim take turns, and medians are compared.
"""
import os
import statistics
import subprocess
import sys
import tempfile

# Factors of the cost without the shim, or amounts added to it (tests/bench/RESULTS.md has the measurements).
AIMS = {"instantiate_per_node": "1.5 times", "update_per_node": "2 times", "set_params": "1000 more",
        "launch_of_one_node": "50 more", "host_bytes_per_node": "2048 more", "device_bytes_per_node": "1.1 times"}

# What runs beside the host's own exec has the aims of what runs in it.
def aim_of(name):
    return AIMS.get(name.removeprefix("merged_").removeprefix("early_"), "")


BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
NODES, EXECS, REPEATS = (sys.argv[2:] + ["200", "100000", "3"][len(sys.argv[2:]):])


def run(has_shim, stats):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FIBSHIM_", "SIMCUDA_"))}
    environment |= {"FIBSHIM_CONFIG": f"{BUILD}/tests/conformance/config", "FIBSHIM_STATS_DIR": stats}
    if os.environ.get("FIBSHIM_TEST_REAL_DRIVER", "0") in ("", "0"):
        environment |= {"LD_LIBRARY_PATH": f"{BUILD}/sim", "SIMCUDA_FAST": "1"}
    if has_shim:
        environment["LD_PRELOAD"] = f"{BUILD}/lib/libfibshim.so"
    ran = subprocess.run([f"{BUILD}/tests/conformance/conform", "graph_costs", NODES, EXECS], env=environment,
                         check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.split() for line in ran.stdout.splitlines())}


with tempfile.TemporaryDirectory() as folder:
    runs = {True: [], False: []}
    for i in range(int(REPEATS)):
        for has_shim in (False, True):
            runs[has_shim].append(run(has_shim, f"{folder}/stats"))
print(f"{'':30} {'without':>10} {'with':>10} {'ratio':>7} {'more':>9}  aim")
for name in runs[False][0]:
    own, ours = (statistics.median(one[name] for one in runs[has_shim]) for has_shim in (False, True))
    print(f"{name:30} {own:10.1f} {ours:10.1f} {ours / own if own > 0 else float('nan'):7.2f} {ours - own:9.1f}  "
          f"{aim_of(name)}".rstrip())
