#!/usr/bin/env python3
"""Which solutions of the built folders give a row the same bits in every batch: a line for each family, and a failure for each
claim ("batch_invariant": true) that does not hold.

    batch_invariance.py BUILD_FOLDER [FOLDER...]    all of build/config, or those named
"""
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# How many parts a sequence has is FlashAttention's scheduler's to say, by the batch.
LEFT_OUT = {"flash_attention"}
# verify does not make the launches of its patterns; without them it makes one for each solution.
WITHOUT_PATTERNS = {"cublas"}

HELD = {"INVARIANT", "NOT_JUDGED", "SKIPPED"}


def judge(build, folder, work):
    path = os.path.join(build, "config", folder)
    if folder in WITHOUT_PATTERNS:
        path = shutil.copytree(path, os.path.join(work, folder), ignore=shutil.ignore_patterns("patterns"))
    done = subprocess.run([os.path.join(build, "bin", "fibshim"), "verify", "--json", "--batch-invariant", path], text=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)["records"]


def family_of(definition):
    return re.sub(r"\d+", "N", definition)


def main():
    build = sys.argv[1]
    folders = sys.argv[2:] or sorted(os.listdir(os.path.join(build, "config")))
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            if folder in LEFT_OUT:
                print(f"SKIP batch invariance of {folder}")
                continue
            records = judge(build, folder, work)
            found = collections.defaultdict(collections.Counter)
            for record in records:
                claim = {True: "claimed", False: "disclaimed", None: "unclaimed"}[record["claim"]]
                found[family_of(record["definition"])][f"{claim} {record['status']}"] += 1
            for family, counts in sorted(found.items()):
                print(f"measured: {folder} {family}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
            broken = [record["solution"] for record in records if record["claim"] and record["status"] not in HELD]
            claims = sum(record["claim"] is True for record in records)
            if broken:
                print(f"FAIL batch invariance of {folder}: {len(broken)} of {claims} claims do not hold: {' '.join(broken[:20])}")
            else:
                print(f"PASS batch invariance of {folder}: {claims} of {len(records)} solutions claim it, and none of these is not")


if __name__ == "__main__":
    main()
