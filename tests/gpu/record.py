"""The steps of record.sh.

  record.py workload PROFILE      runs PyTorch, Triton and cuBLAS kernels under PyTorch's profiler
  record.py compare RECORDING PROFILE
  record.py decode KIND RESULT    decodes eagerly and in a CUDA graph; KIND: plain, profile, killed, profile_later
  record.py shares RECORDING PROFILE
  record.py speeds RESULT...      of plain ones; the first is without a recording
  record.py killed RECORDING RESULT
  record.py taken_over SUMMARY RESULT
  record.py suggest BUILD RECORDING FOLDER
  record.py cost FILE...          each has the nanoseconds of one launch, a line for each run
"""
import collections
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

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

    with open(profile_path, "w", encoding="utf-8") as file:
        json.dump(kernels_of(profiler), file)


def kernels_of(profiler):
    """Counts and microseconds of what ran on the device, by name."""
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
    return {"counts": counts, "times_us": times_us}


EAGER_STEPS, REPLAYS, ROUNDS = 5, 300, 5


def decode(kind, result_path):
    """A model's steps, eagerly and in a CUDA graph; `profile` has all of the process under the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    import overhead_decode
    overhead_decode.LAYERS = 8

    result = {"rates": []}
    profiler = profile(activities=[ProfilerActivity.CUDA])
    if kind == "profile":
        profiler.start()
    with torch.no_grad():
        model = overhead_decode.Model(overhead_decode.MLP_WIDTHS["gpu_bound"])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(EAGER_STEPS):
                model.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.step()
        if kind == "profile_later":
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                begun, result["steps"] = time.perf_counter(), 0
                while time.perf_counter() - begun < 5:  # until it is noticed, and longer
                    model.step()
                    result["steps"] += 1
                    if result["steps"] % 50 == 0:
                        torch.cuda.synchronize()
                torch.cuda.synchronize()
            model.step()
        if kind == "killed":
            begun, steps = time.perf_counter(), 0
            while time.perf_counter() - begun < 3.5:
                graph.replay()
                steps += 1
                torch.cuda.synchronize()
                if time.perf_counter() - begun < 2:
                    result["steps"] = steps
            with open(result_path, "w", encoding="utf-8") as file:
                json.dump(result, file)
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            for _ in range(REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
            result["rates"].append(REPLAYS / (time.perf_counter() - begun))
    if kind == "profile":
        profiler.stop()
    if kind.startswith("profile"):
        result.update(kernels_of(profiler))
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(result, file)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def shares(recording_path, profile_path):
    """Of a decode: the same counts as the profiler's, in graphs too, and the same shares of GPU time."""
    report = Report("record-cupti")
    profiled = read_json(profile_path)
    lines = read_recording(recording_path)
    ran, times_us, counts, us = (collections.Counter() for _ in range(4))
    for kernel in lines[1:]:
        ran[normal(kernel["demangled"])] += sum(runs["runs"] for runs in kernel["runs"])
        times_us[normal(kernel["demangled"])] += kernel["gpu_time"]["estimated_us"] if kernel["gpu_time"] else 0
    for name, count in profiled["counts"].items():
        counts[normal(name)] += count
        us[normal(name)] += profiled["times_us"][name]
    problems = [f"{process['timing']}: {process['timing_reason']}" for process in lines[0]["processes"]
                if process["timing"] != "cupti"]
    report.check("record has CUPTI tell the times", problems)
    problems = [f"{ran[name]} recorded, {counts[name]} profiled: {name}" for name in sorted(set(ran) | set(counts))
                if ran[name] != counts[name]]
    report.check("every kernel ran as often as the profiler says, eagerly and in graphs", problems)
    all_us, all_profiled_us = sum(times_us.values()), sum(us.values())
    problems = []
    for name, of_profiler in us.most_common():
        mine, its = times_us[name] / max(all_us, 1), of_profiler / all_profiled_us
        print(f"measured:   {mine:7.2%} recorded {its:7.2%} profiled  {ran[name]:6d}  {name[:80]}")
        # Two processes of one kind differ, too: by up to a tenth of a point.
        if abs(mine - its) > max(0.03 * its, 0.001):
            problems.append(f"{mine:.2%} recorded, {its:.2%} profiled: {name}")
    report.check("shares of GPU time are within 3 % of the profiler's", problems)
    sys.exit(report.finish())


def speeds(paths):
    report = Report("record-speed")
    rates = {os.path.basename(path): statistics.median(read_json(path)["rates"]) for path in paths}
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"measured: {rate:8.1f} steps/s ({name}), {rate / first - 1:+.2%}")
    report.check("a recording with CUPTI costs less than a tenth of the steps",
                 [f"{name}: {rate:.1f} of {first:.1f}" for name, rate in rates.items() if rate < 0.9 * first])
    sys.exit(report.finish())


def killed(recording_path, result_path):
    """What ran until a second and a half before the end is there."""
    report = Report("record-killed")
    steps = read_json(result_path)["steps"]
    ran = max(sum(runs["runs"] for runs in kernel["runs"] if runs["in_graph"])
              for kernel in read_recording(recording_path)[1:])
    print(f"measured: {ran} runs in graphs of the commonest kernel; {steps} steps until 1.5 s before the end")
    report.check("what ran is in the recording of a process that was killed", [] if ran >= steps else [f"{ran} of {steps}"])
    sys.exit(report.finish())


def taken_over(summary_path, result_path):
    report = Report("record-taken-over")
    time_of_gpu = read_json(summary_path)["gpu_time"]
    result = read_json(result_path)
    print(f"measured: {time_of_gpu}")
    report.check("a profiler that begins later takes CUPTI over, and the summary says so",
                 [] if time_of_gpu["source"] == "CUPTI and events" else [str(time_of_gpu)])
    most = max(result["counts"].values(), default=0)
    report.check("the profiler misses nothing",
                 [] if most and most % result["steps"] == 0 else [f"{most} of a kernel in {result['steps']} steps"])
    sys.exit(report.finish())


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
    steps = {"workload": workload, "compare": compare, "suggest": suggest, "decode": decode, "shares": shares,
             "killed": killed, "taken_over": taken_over}
    lists = {"cost": cost, "speeds": speeds}
    if sys.argv[1] in lists:
        lists[sys.argv[1]](sys.argv[2:])
    else:
        steps[sys.argv[1]](*sys.argv[2:])
