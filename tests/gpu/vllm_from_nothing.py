#!/usr/bin/env python3
"""vLLM begun with a folder that knows none of its kernels, and moved to those that do.

  tests/gpu/vllm_from_nothing.py BUILD [--layers N]

Two processes in default mode, one begun with config/demo, one with the folders for vLLM. Each is moved to those folders, off, and on again
by `fibshim swap`; wherever the same kernels run, tokens and log probabilities are the same, bit for bit, in both processes.
"""
import argparse
import json
import pathlib
import random
import sys

from vllm_graphs import folder_list, run_child

PLACES = (("own", None), ("own again", None), ("moved", "folders"), ("off", "--off"), ("on", "--on"))


def child(args):
    import engine_vllm
    from vllm_shadow import Engine, hits_of
    engine = Engine(args)
    draw = random.Random(3)
    asked = engine_vllm.prompts_of(8, 300, draw)
    starts = [engine_vllm.prompts_of(batch, 32, draw) for batch in (1, 32)]
    out = {}
    for name, place in PLACES:
        moved = engine_vllm.move(folder_list(engine.build / "config") if place == "folders" else place, engine.build) if place else {}
        before = hits_of(engine.stats)
        told = engine_vllm.tell(engine.llm, asked, starts)
        out[name] = {"told": told, "hits": sum((hits_of(engine.stats) - before).values()),
                     "moved": moved.get("graphs_moved", 0), "kept": moved.get("graphs_kept", 0)}
    json.dump(out, open(args.child, "w"))


def say(is_fine, what):
    print(f"{'PASS' if is_fine else 'FAIL'} vllm_from_nothing: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.eager = False
    if args.child:
        return child(args)
    build = args.build.resolve()
    moved = run_child(__file__, args, str(build / "config/demo"))
    begun = run_child(__file__, args, folder_list(build / "config"))
    same = lambda one, other: one["told"] == other["told"]
    say(moved["own"]["hits"] == 0 and same(moved["own"], moved["own again"]), "begun with config/demo: no hits, and the engine repeats itself")
    say(moved["moved"]["moved"] > 0 == moved["moved"]["kept"] and moved["moved"]["hits"] > 0,
        f"moved to the folders: {moved['moved']['moved']} graphs, {moved['moved']['kept']} kept, {moved['moved']['hits']} hits")
    say(same(moved["moved"], begun["own"]), "the results are those of a process that began there")
    say(moved["off"]["hits"] == 0 and same(moved["off"], moved["own"]), "off: the engine's own results")
    say(same(moved["on"], moved["moved"]), "on: those of the folders again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
