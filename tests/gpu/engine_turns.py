"""What the tests of whole engines share: rounds that run the engine's kernels and ours by turns, and what both ways say of each other.

A side is what one way has told: of each phase "tokens_per_s", "all", "host_share" and "kernels" (microseconds by name); "moves"; "logprobs" of prompts;
and "decoded", of each sequence the steps: token, its log probability, and the second's.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "engines"))
import shares

PREFILLS = 3  # timed one by one


class OptionAction(argparse.Action):
    """Adds NAME=VALUE to a dict; VALUE is JSON, or else text."""
    def __call__(self, parser, args, text, _=None):
        name, _, value = text.partition("=")
        try:
            value = json.loads(value)
        except ValueError:
            pass
        setattr(args, self.dest, {**getattr(args, self.dest), name: value})


def add_option(parser):
    """args.options: what the engine's own constructor is given besides, by name."""
    parser.add_argument("--option", dest="options", metavar="NAME=VALUE", action=OptionAction, default={}, help="one of the engine's own")


def option_words(options):
    return [word for name, value in options.items() for word in ("--option", f"{name}={json.dumps(value)}")]


def move(where, build, pid=None, job=None):
    """Moves a process, this one by default, or the ranks of a job, with their captured graphs. What is said of it, or of the rank with the most."""
    whose = ["--job", job] if job else ["--pid", str(pid or os.getpid())]
    done = subprocess.run([build / "bin/fibshim", "swap", where, *whose, "--wait", "--json"], check=True,
                          stdout=subprocess.PIPE, text=True, env={n: v for n, v in os.environ.items() if n != "LD_PRELOAD"})
    return max(json.loads(done.stdout)["processes"], key=lambda process: process["graphs_moved"])


def phase_of(batch, context=None):
    return f"decode, batch {batch}" + (f", context {context}" if context else "")


def rates(ways, phases, rounds, go, work, is_in_thread=True):
    """Of each way and phase, (name, requests, tokens of each), tokens a second by turns; a round before them warms up, and some tokens
    before each turn: a kernel outside a graph is chosen and loaded at its first launch after a move. And, where the engine
    runs in the calling thread, the share of that time in which it computed: near 1, the host decides, and not the kernels."""
    found = {way: {name: [] for name, *_ in phases} for way in ways}
    for turn in range(rounds + 1):
        for way in ways if turn % 2 else reversed(ways):
            go(way)
            for name, requests, decoded in phases:
                tokens = len(requests) * (1024 if name == "prefill" else decoded)
                work(name, requests, min(decoded, 2))
                for _ in range(PREFILLS if name == "prefill" else 1):
                    begun, computed = time.perf_counter(), time.thread_time()
                    work(name, requests, decoded)
                    seconds, computed = time.perf_counter() - begun, time.thread_time() - computed
                    if turn > 0:
                        found[way][name].append((tokens / seconds, computed / seconds))
                print(f"turn {turn} of {rounds}, {way}: {name}: {tokens / seconds:.1f} tokens/s", file=sys.stderr, flush=True)
    sides = {way: {name: [list(values) for values in zip(*timed)] for name, timed in phases.items()} for way, phases in found.items()}
    return {way: {name: {"tokens_per_s": statistics.median(rates), "all": rates, "host_share": statistics.median(shares) if is_in_thread else None}
                  for name, (rates, shares) in phases.items()} for way, phases in sides.items()}


def compare_tokens(own, ours):
    """Distances of the log probabilities while the tokens are the same, and the engine's own lead where they part."""
    distances, leads = [], []
    for before, after in zip(own, ours):
        for (a, of_a, second), (b, of_b, _) in zip(before, after):
            if a != b:
                leads.append(of_a - second)
                break
            distances.append(abs(of_a - of_b))
    return distances, leads


def distances_of(own, ours):
    """Distances of the log probabilities of prompts, and of decoded tokens as compare_tokens tells them."""
    return [abs(a - b) for x, y in zip(own["logprobs"], ours["logprobs"]) for a, b in zip(x, y)], *compare_tokens(own["decoded"], ours["decoded"])


def say_distances(prompts, decoded, leads, sequences):
    return (f"log probabilities of prompts differ by {statistics.mean(prompts):.4f} in the mean, {max(prompts):.3f} at most, of {len(prompts)}; "
            f"of {len(decoded)} decoded tokens by {statistics.mean(decoded):.4f}, {max(decoded):.3f} at most; {len(leads)} of {sequences} sequences "
            f"part, where the first's token led by {max(leads, default=0):.4f} at most")


def report(engine, mode, result, totals, ours, known, first_phase, layers, is_apart=False, kernels=0, between_own=None):
    """Prints what the two ways say, with PASS and FAIL. README's rows. between_own: the distances_of two modes of the engine without the
    folders, than which ours may not be further."""
    off, on, rows = result["--off"], result["--on"], []
    for way, side in (("off", off), ("on", on)):
        last = side["moves"][-1]
        count = sum(name in ours for name in side[first_phase]["kernels"])
        print(f"{'PASS' if (count == 0) == (way == 'off') else 'FAIL'} {engine}.{mode}.swap_{way}: {len(side['moves'])} moves, the last of "
              f"{last['graphs_moved']} graphs, {last['graphs_kept']} kept; {count} kernels of the folders then decode")
    for phase in [phase for phase in on if phase.startswith(("decode, ", "prefill"))]:
        before, after = off[phase]["kernels"], on[phase]["kernels"]
        seen, replaced = shares.share(before, known), shares.share(after, ours.__contains__)
        rate = lambda side: f"{side[phase]['tokens_per_s']:.1f} ({min(side[phase]['all']):.1f} to {max(side[phase]['all']):.1f})"
        ratios = [b / a for a, b in zip(off[phase]["all"], on[phase]["all"])]
        turns = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        apart = f", {rate(result['apart'])} without the shim" if is_apart else ""
        host = "" if off[phase]["host_share"] is None else "; the host computes in {:.0f} % of the time off, {:.0f} % on".format(
            *(100 * side[phase]["host_share"] for side in (off, on)))
        print(f"{mode}, {phase}: {100 * seen:.1f} % of GPU time known by name, {100 * replaced:.1f} % replaced; "
              f"tokens/s {rate(off)} off, {rate(on)} on, x{on[phase]['tokens_per_s'] / off[phase]['tokens_per_s']:.3f} (of each turn, "
              f"quartiles x{turns[0]:.3f}, x{turns[1]:.3f}, x{turns[2]:.3f}){apart}; GPU "
              f"{sum(before.values()) / 1e3:.1f} ms off, {sum(after.values()) / 1e3:.1f} on" + host)
        where = f"{engine}.{mode}.{phase.replace(', batch ', '').replace(', context ', '_')}"
        print(f"{'PASS' if replaced > 0 else 'FAIL'} {where}: kernels of the folder ran")
        lines, problems = shares.of_unknown(before, known)
        print(*lines, sep="\n")
        print(f"{'FAIL' if problems else 'PASS'} {where}.known: every norm, activation, RoPE and KV write" + (f": not {problems[0]}" if problems else ""))
        rows.append(shares.readme_row(mode, layers, phase, seen, replaced, off[phase]["tokens_per_s"], on[phase]["tokens_per_s"]))
        for name in sorted({*before, *after}, key=lambda name: -max(before.get(name, 0), after.get(name, 0)))[:kernels]:
            print(f"  {before.get(name, 0) / 1e3:9.3f} ms off {after.get(name, 0) / 1e3:9.3f} on  {name[:110]}")
    distances, of_decoded, leads = distances_of(off, on)
    print(f"{mode}: {totals['hit']} hits, {totals['error']} errors; {say_distances(distances, of_decoded, leads, len(on['decoded']))}")
    limits = (0.1, 0.1)
    if between_own:
        limits = (statistics.mean(between_own[0]), max(0.1, 1.5 * statistics.mean(between_own[1])))
        print(f"{mode}: {engine}'s own two modes: {say_distances(*between_own, len(on['decoded']))}")
    is_fine = (totals["hit"] > 0 and totals["error"] == 0 and statistics.mean(distances) < limits[0] and statistics.mean(of_decoded) < limits[1]
               and max(leads, default=0) <= 2 * max(of_decoded))
    print(f"{'PASS' if is_fine else 'FAIL'} {engine}.{mode}: hits, no errors, log probabilities near the engine's own, tokens part where two are close")
    return rows
