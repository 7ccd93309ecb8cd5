#!/usr/bin/env python3
"""Runs the worked example of tools/doc/example.md as it stands there: its program and its commands, in a folder
with nothing else but build/. Prints the transcript; the counts in it must be those that the page shows.

    worked_example.py [--write]     --write: puts this machine's transcript into the page
"""
import os
import re
import subprocess
import sys
import tempfile

from counters import BUILD, ROOT, unshimmed_environment
from report import Report

PAGE = os.path.join(ROOT, "tools/doc/example.md")
COMMANDS = (
    "build/bin/fibshim record -o model.jsonl -c build/config/pytorch -- python3 model.py",
    "build/bin/fibshim record --summary model.jsonl",
    "build/bin/fibshim run -c build/config/pytorch -- python3 model.py",
    "build/bin/fibshim stats",
)
HITS = re.compile(r"^.*\brmsnorm_h4096\b.*\bhit\b.*$", re.MULTILINE)


def numbers(text):
    return [word for word in re.findall(r"[\d,.]+", text) if word.strip(",.")]


def shorten(output, folder):
    """Without the names of this machine's folders, and what follows a blank."""
    lines = output.replace(os.path.dirname(BUILD), "...").replace(folder, "...").splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


def main():
    report = Report("worked example")
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    program = re.search(r"`model.py`.*?```python\n(.*?)```", page, re.DOTALL).group(1)
    shown = re.search(r"<!-- example -->\n```console\n(.*?)```", page, re.DOTALL)
    transcript, outputs = "", []
    with tempfile.TemporaryDirectory() as folder, report.phase("every command of the example works") as problems:
        os.symlink(BUILD, os.path.join(folder, "build"))
        with open(os.path.join(folder, "model.py"), "w", encoding="utf-8") as file:
            file.write(program)
        environment = unshimmed_environment() | {"FIBSHIM_STATS_DIR": os.path.join(folder, "stats")}
        for command in COMMANDS:
            done = subprocess.run(command, shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            transcript += f"$ {command}\n{shorten(done.stdout, folder)}"
            outputs.append(done.stdout)
            if done.returncode != 0:
                problems.append(f"exit code {done.returncode} of {command}")
    print(transcript)
    with report.phase("the result is the same with and without the replacement") as problems:
        results = [re.search(r"^\d[\d.e+]*$", text, re.MULTILINE).group() for text in (outputs[0], outputs[2])]
        if abs(float(results[0]) / float(results[1]) - 1) > 1e-3:  # a norm may round otherwise
            problems.append(f"{results[0]} without, {results[1]} with it")
    with report.phase("400 hits, one a norm") as problems:
        found = HITS.search(outputs[3])
        if found is None or "400" not in numbers(found.group()):
            problems.append(f"stats shows {outputs[3]}")
    if "--write" in sys.argv[1:]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page[:shown.start(1)] + transcript + page[shown.end(1):])
    else:
        with report.phase("the page shows these commands") as problems:
            told = re.findall(r"^\$ (.*)$", shown.group(1), re.MULTILINE)
            if told != list(COMMANDS):
                problems.append(f"it shows {told}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
