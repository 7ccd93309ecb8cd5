#!/usr/bin/env bash
# The layers of shim, loader and tools hold (layers.py), and layers.py finds what would break them: each
# fault below is made in a small tree that is otherwise in order.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../../build}
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here python3 - "$build" <<'END'
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile

import layers

# The tree in order: hooks call base and loader calls read; headers are included downward.
IN_ORDER = {
    "shim/abi/format.h": "struct Format { int (*open)(int); };",
    "shim/base/log.h": '#include "shim/abi/format.h"',
    "shim/base/log.cc": "int log_it() { return 1; }",
    "shim/launch/slow.cc": "int log_it(); int launch_slowly() { return log_it(); }",
    "shim/graphs/nodes.cc": "int log_it(); int add_node() { return log_it(); }",
    "shim/record/writer.cc": "int log_it(); int write_down() { return log_it(); }",
    "shim/hooks/hooks.h": '#include "shim/base/log.h"',
    "shim/hooks/hooks.cc": "int log_it(); int launch_slowly(); int hook() { return log_it() + launch_slowly(); }",
    "loader/read/file.cc": "int read_file() { return 1; }",
    "loader/check/check.cc": '#include "shim/abi/format.h"\nint read_file(); int check() { return read_file(); }',
    "tools/base/screen.cc": "int draw() { return 1; }",
    "tools/main.cc": "int draw(); int check(); int run() { return draw() + check(); }",
}
BATCH = "build/obj/tools/base/tools_base_9"
failures = 0
objects = {}  # by their sources' text: most are the same in every tree


def compile_source(root, source, object_file, *flags):
    object_file.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["g++", *flags, "-I.", "-c", source, "-o", object_file], cwd=root, check=True)


def compile_tree(root, sources, is_batched):
    for source in sources:
        if is_batched and source.startswith("tools/"):
            continue
        text, object_file = (root / source).read_text(), root / f"build/obj/{layers.module_of(source)}.o"
        if text not in objects:
            compile_source(root, source, object_file, "-O0")
            objects[text] = object_file.read_bytes()
        object_file.parent.mkdir(parents=True, exist_ok=True)
        object_file.write_bytes(objects[text])
    if is_batched:
        batch = root / f"{BATCH}.cc"
        batch.parent.mkdir(parents=True, exist_ok=True)
        batch.write_text("".join(f'#include "{source}"\n' for source in sources if source.startswith("tools/")))
        compile_source(root, batch, root / f"{BATCH}.o", "-Og", "-g1", "-ffunction-sections", "-fdata-sections", "-fPIC")


def expect(what, said, changes, is_batched=False):
    """What the fault is; what layers.py must say ("" if nothing); the files that differ. is_batched: the tools' sources are one object."""
    global failures
    files, output = {**IN_ORDER, **changes}, io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n")
        compile_tree(root, [path for path in files if path.endswith(".cc")], is_batched)
        with contextlib.redirect_stdout(output):
            try:
                code = layers.main(["--strict", "--root", folder])
            except SystemExit as end:
                code = end.code
                print(code)
    if code != 0 if not said else code == 0 or said not in output.getvalue():
        print(f'layers_test: {what}: expected "{said}", found exit code {code} and\n{output.getvalue()}')
        failures += 1


expect("a tree in order", "", {})
expect("a call upward", "shim: shim/base/log -> shim/hooks/hooks (hook)", {"shim/base/log.cc": "int hook(); int log_it() { return hook(); }"})
expect("an include upward", 'shim: shim/base/log -> shim/hooks/hooks (include "shim/hooks/hooks.h")', {"shim/base/log.h": '#include "shim/hooks/hooks.h"'})
expect("a call between equals", "shim: shim/launch/slow -> shim/record/writer (write_down)",
       {"shim/launch/slow.cc": "int write_down(); int launch_slowly() { return write_down(); }"})
expect("a circle of two", "shim: circle of 2: shim/base/log shim/base/pool",
       {"shim/base/pool.cc": "int log_it(); int take() { return log_it(); }", "shim/base/log.cc": "int take(); int log_it() { return take(); }"})
expect("a circle of three", "loader: circle of 3: loader/read/a loader/read/b loader/read/c",
       {"loader/read/a.cc": "int b(); int a() { return b(); }", "loader/read/b.cc": "int c(); int b() { return c(); }",
        "loader/read/c.cc": "int a(); int c() { return a(); }"})
expect("headers that include each other", "tools: circle of 2: tools/base/keys tools/base/screen",
       {"tools/base/screen.h": '#include "tools/base/keys.h"', "tools/base/keys.cc": "int draw(); int wait() { return draw(); }",
        "tools/base/keys.h": '#include "tools/base/screen.h"'})
expect("data of an upper layer", "shim: shim/base/log -> shim/hooks/hooks (level)",
       {"shim/base/log.cc": "extern int level; int log_it() { return level; }", "shim/hooks/hooks.cc": "int level; int hook() { return 1; }"})
expect("the loader calls the shim", "loader: loader/read/file -> shim/base/log (log_it)",
       {"loader/read/file.cc": "int log_it(); int read_file() { return log_it(); }"})
expect("the loader includes the shim", 'loader: loader/read/file -> shim/base/log (include "shim/base/log.h")',
       {"loader/read/file.cc": '#include "shim/base/log.h"\nint read_file() { return 1; }'})
expect("the shim calls the loader", "shim: shim/hooks/hooks -> loader/check/check (check)",
       {"shim/hooks/hooks.cc": "int check(); int hook() { return check(); }"})
expect("the tools call the shim", "tools: tools/main -> shim/hooks/hooks (hook)", {"tools/main.cc": "int hook(); int run() { return hook(); }"})
expect("a folder without a place", "shim: shim/attic/old.cc (its folder has no place in ORDER)", {"shim/attic/old.cc": "int old() { return 1; }"})
expect("a long file", "tools: tools/base/screen: 601 lines", {"tools/base/screen.cc": "int draw() { return 1; }\n" + "//\n" * 599 + "int last;"})
expect("a long module of two shorter files", "tools: tools/base/screen: 601 lines",
       {"tools/base/screen.h": "//\n" * 299 + "//", "tools/base/screen.cc": "int draw() { return 1; }\n" + "//\n" * 299 + "//"})
expect("a callback that is not listed", "shim: shim/base/log.h: callback on_log is not in shim/base/upcalls.h",
       {"shim/base/log.h": "struct Callbacks { void (*on_log)(int); };"})
expect("a variable for a callback", "shim: shim/base/log.cc: callback g_on_log is not in shim/base/upcalls.h",
       {"shim/base/log.cc": "extern int (*g_on_log)(); int (*g_on_log)() = nullptr; int log_it() { return g_on_log(); }"})
expect("an atomic callback", "shim: shim/base/log.h: callback g_on_log is not in shim/base/upcalls.h",
       {"shim/base/log.h": "template <class F> struct atomic {}; extern atomic<void (*)(int)> g_on_log;"})
expect("an interface that is not listed", "tools/main.cc: class Advice implements Lint of loader/check/check.h",
       {"loader/check/check.h": "class Lint {\n  virtual void finish() {}\n};",
        "tools/main.cc": '#include "loader/check/check.h"\nclass Advice : public Lint {\n}; int draw(); int run() { return draw(); }'})
upcalls = [f"UPCALL({name})" for name in "abcdef"]
expect("five callbacks, and one for the time of a call", "",
       {"shim/base/upcalls.h": "\n".join(upcalls[:5]), "shim/base/log.h": "void each(void (*visit)(int));"})
expect("six callbacks", "shim: shim/base/upcalls.h: 6 callbacks, at most 5", {"shim/base/upcalls.h": "\n".join(upcalls)})
expect("five callbacks and an interface", "shim: shim/base/upcalls.h: 6 callbacks, at most 5",
       {"shim/base/upcalls.h": "\n".join(["// INTERFACE(Lint)", *upcalls[:5]])})
expect("six callbacks as variables", "shim: shim/base/upcalls.h: 6 callbacks, at most 5",
       {"shim/base/upcalls.h": "\n".join(f"extern void (*g_{name})();" for name in "abcdef")})
expect("a tree in order, with a batch", "", {}, is_batched=True)
expect("a call upward in a batch", "tools: tools/base/screen -> tools/main (run)",
       {"tools/base/screen.cc": "int run(); int draw() { return run(); }"}, is_batched=True)
expect("a circle through a table in a batch", "tools: circle of 2: tools/base/keys tools/base/screen",
       {"tools/base/keys.cc": "int draw(); namespace { int (*table[])() = {draw}; } int wait(int i) { return table[i](); }",
        "tools/base/screen.cc": "int wait(int); int draw() { return wait(0); }"}, is_batched=True)
expect("a circle through inline code in a batch", "tools: circle of 2: tools/base/keys tools/base/screen",
       {"tools/base/keys.cc": "struct Key { inline Key(); }; int draw(); Key::Key() { draw(); } int wait() { Key key; return 1; }",
        "tools/base/screen.cc": "int wait(); int draw() { return wait(); }"}, is_batched=True)
expect("a circle through a virtual function in a batch", "tools: circle of 2: tools/base/keys tools/base/screen",
       {"tools/base/keys.cc": "int draw(); namespace n { struct Key { virtual int press(); virtual int hold() { return draw(); } };\n"
                              "  int Key::press() { return 1; } } int wait() { return 1; }",
        "tools/base/screen.cc": "int wait(); int draw() { return wait(); }"}, is_batched=True)
expect("data of a batch", "loader: loader/check/check -> tools/base/screen (n::level)",
       {"tools/base/screen.cc": "namespace n { int level = 2; } int draw() { return n::level; }",
        "loader/check/check.cc": "namespace n { extern int level; } int check() { return n::level; }"}, is_batched=True)
sys.exit(1 if failures else layers.main(["--build", sys.argv[1]]))
END
