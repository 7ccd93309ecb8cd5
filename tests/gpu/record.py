"""The steps of record.sh.

  record.py workload PROFILE      runs PyTorch, Triton and cuBLAS kernels under PyTorch's profiler
  record.py compare RECORDING PROFILE
  record.py suggest BUILD RECORDING FOLDER
  record.py cost FILE...          each has the nanoseconds of one launch, a line for each run
"""
import collections
import glob
import json
import os
import re
import statistics
import subprocess
import sys

from report import Report


def workload(profile_path):
    """Every launch of the process happens under the profiler."""
    import torch
    import torch.nn.functional as F
    import triton
    import triton.language as tl
    from torch.profiler import ProfilerActivity, profile

    @triton.jit
    def add_one(source, target, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < count) + 1, mask=at < count)

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        scale = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
        y = torch.empty_like(x)
        for step in range(300):
            h = F.rms_norm(x, (4096,), scale, 1e-6) @ w
            h = F.gelu(h).float()
            if step % 3 == 0:
                h = torch.softmax(h, -1)
            h.sum()
            add_one[(x.numel() // 1024,)](x, y, x.numel(), BLOCK=1024)
        torch.cuda.synchronize()

    counts = collections.Counter()
    times_us = collections.Counter()
    for event in profiler.profiler.kineto_results.events():
        if "CUDA" not in str(event.device_type()) or re.match(r"Mem(cpy|set)\b", event.name()):
            continue
        if event.name() in ("Context Sync", "Stream Sync", "Device Sync", "Event Sync"):
            continue
        counts[event.name()] += 1
        times_us[event.name()] += event.duration_ns() / 1000
    # Annotations are on the device's track too, and are no kernels.
    for name in [n for n in counts if n.startswith(("ProfilerStep", "gpu_user_annotation"))]:
        del counts[name]
    with open(profile_path, "w", encoding="utf-8") as file:
        json.dump({"counts": counts, "times_us": times_us}, file)


def normal(name):
    """Two demanglers' spellings of one name."""
    return re.sub(r"\s+", "", name.replace("(anonymous namespace)", "{anonymous}"))


def read_recording(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def compare(recording_path, profile_path):
    report = Report("record")
    lines = read_recording(recording_path)
    with open(profile_path, encoding="utf-8") as file:
        profile = json.load(file)
    recorded = collections.Counter()
    times_us = collections.Counter()
    for kernel in lines[1:]:
        recorded[normal(kernel["demangled"])] += kernel["launches"]
        if kernel["gpu_time"]:
            times_us[normal(kernel["demangled"])] += kernel["gpu_time"]["estimated_us"]
    profiled = collections.Counter()
    profiled_us = collections.Counter()
    for name, count in profile["counts"].items():
        profiled[normal(name)] += count
        profiled_us[normal(name)] += profile["times_us"][name]
    problems = []
    for name in sorted(set(recorded) | set(profiled)):
        if recorded[name] != profiled[name]:
            problems.append(f"{recorded[name]} recorded, {profiled[name]} profiled: {name}")
    if len(profiled) < 6:
        problems.append(f"the profiler names only {len(profiled)} kernels")
    for part in ("vectorized_layer_norm", "add_one", "nvjet|gemm|cutlass"):
        if not any(re.search(part, name) for name in profiled):
            problems.append(f"the profiler names no kernel like {part}")
    report.check("record names every kernel that the profiler names, with equal counts", problems)
    all_us, all_profiled_us = sum(times_us.values()), sum(profiled_us.values())
    print(f"measured: {len(profiled)} kernels, {sum(profiled.values())} launches")
    print("measured: share of GPU time, recorded against profiled; microseconds for one launch")
    for name, us in profiled_us.most_common():
        mine = times_us[name]
        print(f"measured:   {mine / all_us if all_us else 0:6.1%} {us / all_profiled_us:6.1%}"
              f"  {mine / max(recorded[name], 1):8.2f} {us / profiled[name]:8.2f}  {name[:90]}")
    sys.exit(report.finish())


RMS_NORM = """
  __shared__ float sums[32];
  const auto* const x = INPUT + int64_t{blockIdx.x} * n;
  auto* const y = OUTPUT + int64_t{blockIdx.x} * n;
  const int thread = threadIdx.x + blockDim.x * threadIdx.y;
  const int threads = blockDim.x * blockDim.y;
  float sum = 0;
  for (int64_t i = thread; i < n; i += threads) {
    const float value = __bfloat162float(x[i]);
    sum += value * value;
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(~0u, sum, offset);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < threads / 32; ++i) sum += sums[i];
  const float factor = rsqrtf(sum / n + EPS);
  if (thread == 0) RSTD[blockIdx.x] = factor;
  for (int64_t i = thread; i < n; i += threads) {
    y[i] = __float2bfloat16(__bfloat162float(x[i]) * factor * __bfloat162float(WEIGHT[i]));
  }
"""

CHECK = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
got = [F.rms_norm(x, (4096,), w, 1e-6) for _ in range(100)][-1]
d = x.double()
wanted = d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-6) * w.double()
error = ((got.double() - wanted).abs() / (wanted.abs() + 1e-3)).max().item()
print(f"largest relative error {error:.5f}")
assert error < 0.01, error
"""


def suggest(build, recording_path, folder):
    """PyTorch's RMSNorm as a kernel that nobody knows."""
    report = Report("suggest")
    fibshim = os.path.join(build, "bin/fibshim")
    with report.phase("suggest leads to a working redirect with edits to the solution only") as problems:
        subprocess.run([fibshim, "suggest", recording_path, "vectorized_layer_norm", "-o", folder],
                       check=True)
        checked = subprocess.run([fibshim, "check", folder], capture_output=True, text=True)
        if checked.returncode != 0:
            problems.append("check refuses what suggest wrote: " + checked.stdout + checked.stderr)
        source_path, = glob.glob(folder + "/solutions/*/kernel.cu")
        with open(source_path, encoding="utf-8") as file:
            source = file.read()
        # (int N, float eps, X, gamma, beta, mean, rstd, Y)
        body = RMS_NORM
        for word, name in (("INPUT", "input2"), ("WEIGHT", "input3"), ("RSTD", "output6"),
                           ("OUTPUT", "output7"), ("EPS", "arg1")):
            body = body.replace(word, name)
        with open(source_path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"#error .*\n", lambda _: body, source))
        environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/local/cuda/bin"}
        subprocess.run(["sh", os.path.join(os.path.dirname(source_path), "build.sh")], check=True,
                       env=environment)
        subprocess.run([fibshim, "check", folder], check=True)
        stats = folder + ".stats"
        subprocess.run([fibshim, "run", "-c", folder, "--stats-dir", stats, "--", sys.executable, "-c",
                        CHECK], check=True)
        shown = subprocess.run([fibshim, "stats", "--dir", stats, "--json"], check=True,
                               capture_output=True, text=True)
        hits = json.loads(shown.stdout)["totals"]["hit"]
        if hits != 100:
            problems.append(f"{hits} hits of 100")
    sys.exit(report.finish())


def cost(paths):
    report = Report("cost")
    medians = {}
    problems = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            values = [float(line) for line in file]
        name = path.rsplit(".", 1)[1]
        if len(values) != 5:
            problems.append(f"{name}: {len(values)} runs of 5")
        if values:
            medians[name] = statistics.median(values)
            print(f"measured: a launch takes {medians[name]:7.1f} ns ({name}: "
                  f"{min(values):.1f} to {max(values):.1f}), "
                  f"{medians[name] - medians[paths[0].rsplit('.', 1)[1]]:+.1f}")
    report.check("what a launch costs without the shim, applied, observed and recorded", problems)
    sys.exit(report.finish())


if __name__ == "__main__":
    steps = {"workload": workload, "compare": compare, "suggest": suggest}
    if sys.argv[1] == "cost":
        cost(sys.argv[2:])
    else:
        steps[sys.argv[1]](*sys.argv[2:])
