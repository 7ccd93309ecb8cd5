#!/usr/bin/env python3
"""Which solutions of the built folders give a row the same bits in every batch: a line for each family, and a failure for each
claim ("batch_invariant": true) that does not hold.

    batch_invariance.py BUILD_FOLDER [--out FILE] [FOLDER...]    all of build/config, or those named
    batch_invariance.py --claim FILE                             says so in the templates of config/shared whose solutions all were
"""
import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

# How many parts a sequence has is FlashAttention's scheduler's to say, by the batch.
LEFT_OUT = {"flash_attention"}
# verify does not make the launches of its patterns; without them it makes one for each solution.
WITHOUT_PATTERNS = {"cublas"}

HELD = {"INVARIANT", "NOT_JUDGED", "SKIPPED"}
PROCESSES = max(1, min(8, (os.cpu_count() or 1) // 2))  # of one folder at a time
CONFIG = pathlib.Path(__file__).resolve().parents[2] / "config"


def judge(build, folder, work):
    path = build / "config" / folder
    if folder in WITHOUT_PATTERNS:
        path = pathlib.Path(shutil.copytree(path, os.path.join(work, folder), ignore=shutil.ignore_patterns("patterns")))
    solutions, places = {}, {}
    for file in path.glob("solutions/**/*.json"):
        one = json.loads(file.read_text())
        solutions[one["name"]], places[one["name"]] = one, str(file.parent.relative_to(path))
    definitions = sorted({one["definition"] for one in solutions.values()})

    def judge_some(names):
        done = subprocess.run([build / "bin/fibshim", "verify", "--json", "-q", "--batch-invariant", path, *names], text=True,
                              stdout=subprocess.PIPE)
        try:
            return json.loads(done.stdout)["records"]
        except (ValueError, KeyError):
            print(f"FAIL batch invariance of {folder}: verify tells nothing of {' '.join(names)}: {done.stdout[-500:]}")
            return []

    parts = [part for part in (definitions[first::PROCESSES] for first in range(PROCESSES)) if part]
    with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        records = [one for some in pool.map(judge_some, parts) for one in some]
    for one in records:
        one["folder"], one["place"] = folder, places[one["solution"]]
        one["kernel"] = solutions[one["solution"]]["launch"]["kernel"]
        one["batches"] = [min(one["batches"]), max(one["batches"])] if one["batches"] else []
    return records


def family_of(name):
    return re.sub(r"\d+", "N", name)


def report(folder, records, took):
    found = collections.defaultdict(collections.Counter)
    for record in records:
        claim = {True: "claimed", False: "disclaimed", None: "unclaimed"}[record["claim"]]
        found[family_of(record["definition"])][f"{claim} {record['status']}"] += 1
    for family, counts in sorted(found.items()):
        print(f"measured: {folder} {family}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    for record in records:
        if record["status"] not in HELD:
            print(f"  {record['solution']}: {record['status']}: {record['log'][:200]}")
    broken = [record["solution"] for record in records if record["claim"] and record["status"] not in HELD]
    claims = sum(record["claim"] is True for record in records)
    if not records:
        print(f"FAIL batch invariance of {folder}: nothing was judged")
    elif broken:
        print(f"FAIL batch invariance of {folder}: {len(broken)} of {claims} claims do not hold: {' '.join(broken[:20])}")
    else:
        print(f"PASS batch invariance of {folder}: {claims} of {len(records)} solutions claim it, and none of these is not ({took:.0f} s)")
    sys.stdout.flush()


@functools.cache
def templates(folder):
    """(place, template, regular expression of its kernels' names) of the folder's `parts`; the most specific first."""
    out = []
    for line in (CONFIG / folder / "parts").read_text().splitlines():
        place, template, _, *columns = line.split("#")[0].split() or [""] * 3
        if not place.startswith("solutions/"):
            continue
        path = next(path for path in (CONFIG / folder / template, CONFIG / template) if path.exists())
        kernel = re.search(r'"kernel": "([^"]*)"', path.read_text())[1]
        for name, _, value in (column.partition("=") for column in columns):
            kernel = kernel.replace(f"@{name}@", "" if value == "-" else value)
        words = re.split(r"@\w+@", kernel)
        out.append((len("".join(words)), place, path, re.compile(r"\w*".join(map(re.escape, words)))))
    return [one[1:] for one in sorted(out, key=lambda one: -one[0])]


def by_template(records):
    """Template -> how many solutions of it have which status."""
    out = collections.defaultdict(collections.Counter)
    for record in records:
        path = next((path for place, path, kernels in templates(record["folder"])
                     if place == record["place"] and kernels.fullmatch(record["kernel"])), None)
        out[path][record["status"]] += 1
    return out


def claim(file):
    for path, counts in sorted(by_template(json.loads(pathlib.Path(file).read_text())).items(), key=str):
        text = path.read_text() if path else '"batch_invariant"'
        found = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        if set(counts) != {"INVARIANT"} or '"batch_invariant"' in text:
            print(f"as it is: {path}: {found}")
            continue
        text, places = re.subn(r'^(    )"arguments": \[', r'\1"batch_invariant": true,\n\g<0>', text, count=1, flags=re.M)
        if places:
            path.write_text(text)
        print(f"{'claimed' if places else 'claimed in `parts`, or nowhere'}: {path}: {found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--claim", metavar="FILE")
    args = parser.parse_intermixed_args()
    if args.claim:
        return claim(args.claim)
    if args.build is None:
        parser.error("needs BUILD_FOLDER, or --claim FILE")
    build, everything = args.build.resolve(), []
    with tempfile.TemporaryDirectory() as work:
        for folder in args.folders or sorted(os.listdir(build / "config")):
            if folder in LEFT_OUT:
                print(f"SKIP batch invariance of {folder}")
                continue
            begun = time.monotonic()
            records = judge(build, folder, work)
            everything += records
            report(folder, records, time.monotonic() - begun)
            if args.out:
                pathlib.Path(args.out).write_text(json.dumps(everything))
    for path, counts in sorted(by_template(everything).items(), key=str):
        print(f"measured: {path and path.relative_to(CONFIG)}: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))


if __name__ == "__main__":
    sys.exit(main())
