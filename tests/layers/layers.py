#!/usr/bin/env python3
"""Reads what the objects of shim, loader and tools define and use, and says where the layers break.

A module is a .h with its .cc, named by its path without ending. An arrow a -> b stands for a symbol
that an object of a leaves undefined and one of b defines (nm), or for an #include. In an object of several files (Makefile, `batches`) it
stands for a symbol that a function of a refers to (its relocations): debug information says which file a function is of. Offences, one a line:

  room: a -> b (symbol or include)    against the order of folders (ORDER), or into another room (REACHES)
  room: circle of N: a b c            modules that call each other in a circle, with its arrows
  room: module: N lines               longer than MAX_LINES, the .h and the .cc together
  room: file: callback ...            a function pointer kept by a lower layer that UPCALLS does not list
  room: file: class ... implements    a class with virtual functions of a lower layer that UPCALLS does not list

  layers.py [--root FOLDER] [--build FOLDER] [--strict | --report]

  --strict   offences of KNOWN fail, too
  --report   print counts instead: modules, modules in circles, mutual pairs; always exit code 0
"""
import argparse
import collections
import functools
import os
import re
import subprocess
import sys
import tempfile

# The order of folders, highest first. Folders in one row are equals: no arrow leads from one to another.
# "" holds the files that lie in the room itself.
ORDER = {
    "shim": [["hooks"], ["life"], ["graphs"], ["record", "shadow", "launch"], ["plan"], ["registry"], ["counters"],
             ["driver"], ["base"], ["abi"]],
    "loader": [["check"], ["compile"], ["read"], ["memory"]],
    "tools": [[""], ["commands"], ["judge"], ["lint"], ["record"], ["images"], ["counters"], ["processes"],
              ["base"]],
}
# Arrows between equals that are allowed: (room, from, to).
BETWEEN_EQUALS = set()
# Folders of other rooms that a room may use.
REACHES = {
    "shim": [],
    "loader": ["shim/abi"],
    "tools": ["loader", "shim/abi", "shim/plan"],
}
MAX_LINES = 600
# Mangled names of templates of libraries, which any object may hold.
LIBRARIES = re.compile(r"3fmt2v|8nlohmann|7testing")
# What a section of one function or variable is named after.
SECTION = re.compile(r"\.(?:text|data|rodata|bss)(?:\.(?:unlikely|startup|exit|hot|rel|ro|local))*\.(.+)")
ADDEND = re.compile(r"[-+]0x[0-9a-f]+$")

# Function pointers that a lower layer keeps and a higher one fills stand here, one UPCALL(...) row each; with them,
# one INTERFACE(...) row each, the classes of a lower layer that a higher one implements.
UPCALLS = "shim/base/upcalls.h"
MAX_UPCALLS = 5
# Tables of functions that are no callbacks: the loader's, the driver's and libc's.
FUNCTION_TABLES = ("shim/abi/", "shim/driver/")

# KNOWN OFFENCES: what is printed but does not fail, while the rooms are being put in order.
# (room, kind) with kind one of order, circle, lines, callbacks. MUST BE EMPTY.
KNOWN = set()

Offence = collections.namedtuple("Offence", "room kind text")


def module_of(path):
    return os.path.splitext(path)[0]


def folder_of(module):
    parts = module.split("/")
    return parts[1] if len(parts) > 2 else ""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@functools.cache
def body_of(symbol):
    """The kinds of constructors and destructors have one body and several names."""
    return re.sub(r"([CD])[0-5](?=E)", r"\g<1>", symbol)


class Tree:
    """The sources of the three rooms, and the arrows between their modules."""

    def __init__(self, root, build):
        self.root, self.build = root, build
        self.files = []
        for room in ORDER:
            for folder, _, names in os.walk(os.path.join(root, room)):
                self.files += [os.path.relpath(os.path.join(folder, name), root)
                               for name in names if name.endswith((".h", ".cc", ".S"))]
        self.files.sort()
        self.modules = sorted({module_of(path) for path in self.files})
        self.text = {path: open(os.path.join(root, path), encoding="utf-8").read() for path in self.files}
        self.calls = self.read_calls()        # (from, to) -> a symbol
        # (from, to) -> the header; all, and those that a header includes
        self.includes = self.read_includes(self.files)
        self.headers = self.read_includes([path for path in self.files if path.endswith(".h")])

    def read_calls(self):
        batches = self.find_batches()
        objects = {module_of(path): os.path.join(self.build, "obj", module_of(path) + ".o")
                   for path in self.files if not path.endswith(".h") and path not in batches}
        missing = [path for path in [*objects.values(), *batches.values()] if not os.path.exists(path)]
        if missing:
            sys.exit("layers.py: not built: " + " ".join(missing))
        strong, weak, used = (collections.defaultdict(set) for _ in range(3))
        for path in sorted(set(batches.values())):
            self.read_batch(path, strong, used)
        module_at = {path: module for module, path in objects.items()}
        for line in run("nm", "-A", "-P", *module_at).splitlines():
            path, symbol, kind = line.split()[:3]
            module = module_at[path.removesuffix(":")]
            if kind in "Uwv":
                used[module].add(symbol)
            elif kind in "WVu":
                weak[symbol].add(module)
            elif kind.isupper():
                strong[symbol].add(module)
        calls = {}
        for module, symbols in used.items():
            for symbol in sorted(symbols):
                if LIBRARIES.search(symbol):
                    continue
                found = strong.get(symbol) or weak.get(symbol, set())
                # The program that the caller is in comes first: rooms may use one name each. What another room
                # defines without C++'s mangling is libc's or the driver's own name, such as dlopen.
                own = {to for to in found if to.split("/")[0] == module.split("/")[0]}
                if not own and not symbol.startswith("_Z"):
                    continue
                for to in own or found:
                    if to != module:
                        calls.setdefault((module, to), symbol)
        names = run("c++filt", "-p", "--", *calls.values()).splitlines()
        return dict(zip(calls, names))

    def find_batches(self):
        """The object that a source is compiled into with others, by source; of a build with other batches the newest."""
        found = {}
        for room in ORDER:
            for folder, _, names in os.walk(os.path.join(self.build, "obj", room)):
                for name in names:
                    batch, path = os.path.join(folder, name), os.path.join(folder, module_of(name) + ".o")
                    if not name.endswith(".cc") or not os.path.exists(path):
                        continue
                    for source in re.findall(r'#include "([^"]+)"', open(batch, encoding="utf-8").read()):
                        others = [found.get(source), os.path.join(self.build, "obj", module_of(source) + ".o")]
                        newest = max((one for one in others if one and os.path.exists(one)), key=os.path.getmtime, default=None)
                        if source in self.files and (newest is None or os.path.getmtime(newest) < os.path.getmtime(path)):
                            found[source] = path
        return found

    @functools.cache
    def module_at(self, place):
        root = os.path.realpath(self.root)
        return module_of(os.path.relpath(os.path.realpath(os.path.join(root, place)), root))

    def read_batch(self, path, strong, used):
        """Adds the modules that define the strong symbols of an object of several files, and the symbols that each of them refers to."""
        owners, wanted, placed = collections.defaultdict(set), set(), set()
        # Weak symbols are left out where lines are asked for: nm takes long to find one. An older one has no word for it.
        no_weak = ["--no-weak"] if "--no-weak" in run("nm", "--help") else []
        placed_at = {line.split()[0]: self.module_at(line.partition("\t")[2].rpartition(":")[0])
                     for line in run("nm", "-l", "-P", "--defined-only", *no_weak, path).splitlines()}
        known = {body_of(symbol): module for symbol, module in placed_at.items() if module in self.modules}
        for line in run("nm", "-P", path).splitlines():
            symbol, kind = line.split()[:2]
            module = placed_at.get(symbol)
            if module not in self.modules:
                module = known.get(body_of(symbol))
            if kind in "Uwv" or kind.isupper() and kind not in "WVN":
                wanted.add(symbol)
            if kind.isupper() and kind not in "UWVN":
                if module not in self.modules:
                    sys.exit(f"layers.py: {path} does not say which file defines {symbol}")
                strong[symbol].add(module)
            if kind not in "UWVwvun" and module in self.modules:
                owners[body_of(symbol)].add(module)
                placed.add(body_of(symbol))
        references = collections.defaultdict(set)
        with tempfile.NamedTemporaryFile() as bare:  # nine tenths of the relocations are of debug information
            run("objcopy", "--strip-debug", path, bare.name)
            relocations = run("objdump", "-r", "-w", bare.name)
        for records in relocations.split("RELOCATION RECORDS FOR [")[1:]:
            section = SECTION.fullmatch(records.partition("]:")[0])
            for place in set(re.findall(r" R_\S+ +(\S+)\n", records)) if section else ():
                symbol = ADDEND.sub("", place)
                named = SECTION.fullmatch(symbol)
                references[body_of(section[1])].add(named[1] if named else symbol)
        # A table of virtual functions is where the class's other functions are.
        for symbol in [one for one in references if one.startswith("_ZTV")]:
            owners[symbol].update(*(owners[one] for one in placed if one.startswith(f"_Z{symbol[4:].removesuffix('E')}")))
        # Inline code, and what no line tells (tables), is of those who refer to it.
        waiting = [symbol for symbol in owners if owners[symbol]]
        while waiting:
            symbol = waiting.pop()
            for other in map(body_of, references[symbol]):
                if other not in placed and not owners[symbol] <= owners[other]:
                    owners[other] |= owners[symbol]
                    waiting.append(other)
        for symbol, others in references.items():
            for module in owners[symbol]:
                used[module] |= others & wanted

    def read_includes(self, files):
        includes = {}
        for path in files:
            for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', self.text[path], re.M):
                to = module_of(header)
                if to != module_of(path) and to in self.modules:
                    includes.setdefault((module_of(path), to), header)
        return includes


def circles_of(modules, arrows):
    """The strongly connected components of more than one module (Tarjan), largest first."""
    to = collections.defaultdict(list)
    for a, b in arrows:
        to[a].append(b)
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        on_stack.add(module)
        for other in to[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in on_stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = []
            while not component or component[-1] != module:
                component.append(stack.pop())
                on_stack.remove(component[-1])
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10000)
    for module in modules:
        if module not in index:
            visit(module)
    return sorted(found, key=lambda component: (-len(component), component))


def mutual_pairs(arrows):
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def within(arrows, room):
    return {(a, b): why for (a, b), why in arrows.items()
            if a.split("/")[0] == room and b.split("/")[0] == room}


RANK = {(room, folder): row for room, rows in ORDER.items()
        for row, folders in enumerate(rows) for folder in folders}


def arrow_offences(tree):
    for path in tree.files:
        room, folder = path.split("/")[0], folder_of(path)
        if (room, folder) not in RANK:
            yield Offence(room, "order", f"{path} (its folder has no place in ORDER)")
    for arrows, how in ((tree.calls, "{}"), (tree.includes, 'include "{}"')):
        for (a, b), why in sorted(arrows.items()):
            room, other = a.split("/")[0], b.split("/")[0]
            allowed = True
            if room != other:
                allowed = any((b + "/").startswith(folder + "/") for folder in REACHES[room])
            else:
                above, below = RANK.get((room, folder_of(a))), RANK.get((room, folder_of(b)))
                if folder_of(a) != folder_of(b) and above is not None and below is not None:
                    allowed = above < below or (room, folder_of(a), folder_of(b)) in BETWEEN_EQUALS
            if not allowed:
                yield Offence(room, "order", f"{a} -> {b} ({how.format(why)})")


def circle_offences(tree):
    for room in ORDER:
        # Inline code of a header calls without a symbol: among headers an #include is an arrow, too.
        arrows = within(tree.headers, room) | within(tree.calls, room)
        for circle in circles_of(tree.modules, arrows):
            inside = [f"\n    {a} -> {b} ({why})" for (a, b), why in sorted(arrows.items())
                      if a in circle and b in circle]
            yield Offence(room, "circle", f"circle of {len(circle)}: {' '.join(circle)}{''.join(inside)}")


def long_modules(tree):
    lines = collections.Counter()
    for path in tree.files:
        lines[module_of(path)] += tree.text[path].count("\n")
    return [(module, count) for module, count in sorted(lines.items()) if count > MAX_LINES]


def line_offences(tree):
    for module, lines in long_modules(tree):
        yield Offence(module.split("/")[0], "lines", f"{module}: {lines} lines")


def callback_offences(tree):
    def code(path):
        return re.sub(r'//[^\n]*|/\*.*?\*/', "", tree.text[path], flags=re.S)

    interfaces = set()
    entries = 0
    if UPCALLS in tree.files:
        interfaces = set(re.findall(r"^//\s*INTERFACE\((\w+)\)", tree.text[UPCALLS], re.M))
        rows = re.sub(r"^\s*#.*$", "", code(UPCALLS), flags=re.M)
        entries = len(interfaces) + len(re.findall(r"^\s*UPCALL\(|\bextern\b[^;]*\(\s*\*", rows, re.M))
    if entries > MAX_UPCALLS:
        yield Offence("shim", "callbacks", f"{UPCALLS}: {entries} callbacks, at most {MAX_UPCALLS}")
    defined = {}
    for path in tree.files:
        for name, body in re.findall(r"^(?:class|struct) (\w+)[^;{}]*\{(.*?)^\};", code(path), re.M | re.S):
            if re.search(r"\bvirtual\b", body):
                defined[name] = path
    for path in tree.files:
        room, folder = path.split("/")[0], folder_of(path)
        for name, base in re.findall(r"\b(?:class|struct) (\w+)(?: final)? : (?:public )?(?:\w+::)*(\w+) \{", code(path)):
            if base not in defined or base in interfaces:
                continue
            home = defined[base].split("/")[0], folder_of(defined[base])
            if home != (room, folder):
                yield Offence(room, "callbacks", f"{path}: class {name} implements {base} of {defined[base]}, "
                                                 f"which is not in {UPCALLS}")
    for path in tree.files:
        if not path.startswith("shim/") or path == UPCALLS or path.startswith(FUNCTION_TABLES):
            continue
        # A variable or a member of function pointer type; parameters, which last for a call, are none.
        for statement in re.split(r"[;{}]", re.sub(r"^\s*#.*$", "", code(path), flags=re.M)):
            statement = " ".join(statement.split())
            found = re.match(r"[^()=]*\(\s*\*\s*(?:const\s+)?(\w+)\s*(?:\[\w*\])?\s*\)\s*\(", statement)
            found = found or re.match(r"[^()=]*atomic<[^()=]*\(\s*\*\s*\)\s*\(.*>\s*(\w+)", statement)
            if found and not statement.startswith(("using ", "typedef ", "return ")):
                yield Offence("shim", "callbacks", f"{path}: callback {found[1]} is not in {UPCALLS}")


def report(tree):
    for room in ORDER:
        modules = [module for module in tree.modules if module.split("/")[0] == room]
        calls = within(tree.calls, room)
        circles = circles_of(modules, calls)
        with_code = [m for m in modules if m + ".cc" in tree.files or m + ".S" in tree.files]
        long = [(module, count) for module, count in long_modules(tree) if module.split("/")[0] == room]
        lines = sum(tree.text[path].count("\n") for path in tree.files if path.split("/")[0] == room)
        print(f"{room}: {len(modules)} modules ({len(with_code)} objects, {lines} lines), "
              f"{sum(map(len, circles))} in circles{' of ' if circles else ''}"
              f"{', '.join(str(len(circle)) for circle in circles)}; "
              f"{len(mutual_pairs(calls))} mutual pairs; {len(long)} modules over {MAX_LINES} lines")
        for circle in circles:
            print(f"  circle of {len(circle)}: " + " ".join(m[len(room) + 1:] for m in circle))
        for a, b in mutual_pairs(calls):
            print(f"  mutual pair: {a} -> {b} ({calls[a, b]}), {b} -> {a} ({calls[b, a]})")
        for module, count in long:
            print(f"  {module}: {count} lines")


def main(words=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    parser.add_argument("--build", default=None)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(words)
    root = os.path.normpath(options.root)
    tree = Tree(root, options.build or os.path.join(root, "build"))
    if options.report:
        report(tree)
        return 0
    offences = [*arrow_offences(tree), *circle_offences(tree), *line_offences(tree), *callback_offences(tree)]
    known = set() if options.strict else KNOWN
    failed = 0
    for offence in offences:
        is_known = (offence.room, offence.kind) in known
        failed += not is_known
        print(f"{'known: ' if is_known else ''}{offence.room}: {offence.text}")
    for room, kind in sorted(known - {(offence.room, offence.kind) for offence in offences}):
        print(f"layers.py: KNOWN holds ({room}, {kind}), of which there is none any more: take it out")
    print(f"{len(tree.modules)} modules, {len(offences)} offences, {failed} of them not known")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
