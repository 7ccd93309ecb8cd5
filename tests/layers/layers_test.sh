#!/usr/bin/env bash
# The layers of shim, loader and tools hold (layers.py), and layers.py finds what would break them: each
# fault below is made in a small tree that is otherwise in order.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../../build}
scratch=$(mktemp -d)
objects=$(mktemp -d)  # by their sources' sums: most are the same in every tree
trap 'rm -rf "$scratch" "$objects"' EXIT
failures=0

write() { # path, text
  mkdir -p "$scratch/$(dirname "$1")"
  printf '%s\n' "$2" >"$scratch/$1"
}

# The tree in order: hooks call base and loader calls read; headers are included downward.
in_order() {
  rm -rf "${scratch:?}"/*
  write shim/abi/format.h 'struct Format { int (*open)(int); };'
  write shim/base/log.h '#include "shim/abi/format.h"'
  write shim/base/log.cc 'int log_it() { return 1; }'
  write shim/launch/slow.cc 'int log_it(); int launch_slowly() { return log_it(); }'
  write shim/graphs/nodes.cc 'int log_it(); int add_node() { return log_it(); }'
  write shim/record/writer.cc 'int log_it(); int write_down() { return log_it(); }'
  write shim/hooks/hooks.h '#include "shim/base/log.h"'
  write shim/hooks/hooks.cc 'int log_it(); int launch_slowly(); int hook() { return log_it() + launch_slowly(); }'
  write loader/read/file.cc 'int read_file() { return 1; }'
  write loader/check/check.cc '#include "shim/abi/format.h"
    int read_file(); int check() { return read_file(); }'
  write tools/base/screen.cc 'int draw() { return 1; }'
  write tools/main.cc 'int draw(); int check(); int run() { return draw() + check(); }'
}

# what the fault is, what layers.py must say ("" if nothing). batched=1: the tools' sources are one object
expect() {
  local output code=0
  (cd "$scratch" && find shim loader tools -name '*.cc' | while IFS= read -r source; do
    kept=$objects/$(cksum <"$source" | tr ' ' _).o
    [ -e "$kept" ] || g++ -O0 -I. -c "$source" -o "$kept"
    install -D "$kept" "build/obj/${source%.cc}.o"
  done)
  if [ "${batched-}" = 1 ]; then
    (cd "$scratch" && sources=$(find tools -name '*.cc') && rm -rf build/obj/tools && mkdir -p build/obj/tools/base &&
      printf '#include "%s"\n' $sources >build/obj/tools/base/tools_base_9.cc &&
      g++ -Og -g1 -ffunction-sections -fdata-sections -fPIC -I. -c build/obj/tools/base/tools_base_9.cc -o build/obj/tools/base/tools_base_9.o)
  fi
  output=$(python3 "$here/layers.py" --strict --root "$scratch" 2>&1) || code=$?
  if [ -z "$2" ] && [ $code != 0 ] || [ -n "$2" ] && { [ $code = 0 ] || [[ $output != *"$2"* ]]; }; then
    printf 'layers_test: %s: expected "%s", found exit code %s and\n%s\n' "$1" "$2" "$code" "$output"
    failures=$((failures + 1))
  fi
  in_order
}

in_order
expect 'a tree in order' ''
write shim/base/log.cc 'int hook(); int log_it() { return hook(); }'
expect 'a call upward' 'shim: shim/base/log -> shim/hooks/hooks (hook)'
write shim/base/log.h '#include "shim/hooks/hooks.h"'
expect 'an include upward' 'shim: shim/base/log -> shim/hooks/hooks (include "shim/hooks/hooks.h")'
write shim/launch/slow.cc 'int write_down(); int launch_slowly() { return write_down(); }'
expect 'a call between equals' 'shim: shim/launch/slow -> shim/record/writer (write_down)'
write shim/base/pool.cc 'int log_it(); int take() { return log_it(); }'
write shim/base/log.cc 'int take(); int log_it() { return take(); }'
expect 'a circle of two' 'shim: circle of 2: shim/base/log shim/base/pool'
write loader/read/a.cc 'int b(); int a() { return b(); }'
write loader/read/b.cc 'int c(); int b() { return c(); }'
write loader/read/c.cc 'int a(); int c() { return a(); }'
expect 'a circle of three' 'loader: circle of 3: loader/read/a loader/read/b loader/read/c'
write tools/base/keys.h 'int draw(); inline int press() { return draw(); }'
write tools/base/screen.h '#include "tools/base/keys.h"'
write tools/base/keys.cc 'int draw(); int wait() { return draw(); }'
write tools/base/keys.h '#include "tools/base/screen.h"'
expect 'headers that include each other' 'tools: circle of 2: tools/base/keys tools/base/screen'
write shim/base/log.cc 'extern int level; int log_it() { return level; }'
write shim/hooks/hooks.cc 'int level; int hook() { return 1; }'
expect 'data of an upper layer' 'shim: shim/base/log -> shim/hooks/hooks (level)'
write loader/read/file.cc 'int log_it(); int read_file() { return log_it(); }'
expect 'the loader calls the shim' 'loader: loader/read/file -> shim/base/log (log_it)'
write loader/read/file.cc '#include "shim/base/log.h"
  int read_file() { return 1; }'
expect 'the loader includes the shim' 'loader: loader/read/file -> shim/base/log (include "shim/base/log.h")'
write shim/hooks/hooks.cc 'int check(); int hook() { return check(); }'
expect 'the shim calls the loader' 'shim: shim/hooks/hooks -> loader/check/check (check)'
write tools/main.cc 'int hook(); int run() { return hook(); }'
expect 'the tools call the shim' 'tools: tools/main -> shim/hooks/hooks (hook)'
write shim/attic/old.cc 'int old() { return 1; }'
expect 'a folder without a place' 'shim: shim/attic/old.cc (its folder has no place in ORDER)'
write tools/base/screen.cc "$(echo 'int draw() { return 1; }'; yes // | head -n 599)
int last;"
expect 'a long file' 'tools: tools/base/screen: 601 lines'
write tools/base/screen.h "$(yes // | head -n 300)"
write tools/base/screen.cc "$(echo 'int draw() { return 1; }'; yes // | head -n 300)"
expect 'a long module of two shorter files' 'tools: tools/base/screen: 601 lines'
write shim/base/log.h 'struct Callbacks { void (*on_log)(int); };'
expect 'a callback that is not listed' 'shim: shim/base/log.h: callback on_log is not in shim/base/upcalls.h'
write shim/base/log.cc 'extern int (*g_on_log)(); int (*g_on_log)() = nullptr; int log_it() { return g_on_log(); }'
expect 'a variable for a callback' 'shim: shim/base/log.cc: callback g_on_log is not in shim/base/upcalls.h'
write shim/base/log.h 'template <class F> struct atomic {}; extern atomic<void (*)(int)> g_on_log;'
expect 'an atomic callback' 'shim: shim/base/log.h: callback g_on_log is not in shim/base/upcalls.h'
write loader/check/check.h "$(printf '%s\n' 'class Lint {' '  virtual void finish() {}' '};')"
write tools/main.cc '#include "loader/check/check.h"
  class Advice : public Lint {
  }; int draw(); int run() { return draw(); }'
expect 'an interface that is not listed' 'tools/main.cc: class Advice implements Lint of loader/check/check.h'
write shim/base/upcalls.h "$(printf 'UPCALL(%s)\n' a b c d e)"
write shim/base/log.h 'void each(void (*visit)(int));'
expect 'five callbacks, and one for the time of a call' ''
write shim/base/upcalls.h "$(printf 'UPCALL(%s)\n' a b c d e f)"
expect 'six callbacks' 'shim: shim/base/upcalls.h: 6 callbacks, at most 5'
write shim/base/upcalls.h "$(printf '// INTERFACE(Lint)\n'; printf 'UPCALL(%s)\n' a b c d e)"
expect 'five callbacks and an interface' 'shim: shim/base/upcalls.h: 6 callbacks, at most 5'
write shim/base/upcalls.h "$(printf 'extern void (*g_%s)();\n' a b c d e f)"
expect 'six callbacks as variables' 'shim: shim/base/upcalls.h: 6 callbacks, at most 5'
batched=1 expect 'a tree in order, with a batch' ''
write tools/base/screen.cc 'int run(); int draw() { return run(); }'
batched=1 expect 'a call upward in a batch' 'tools: tools/base/screen -> tools/main (run)'
write tools/base/keys.cc 'int draw(); namespace { int (*table[])() = {draw}; } int wait(int i) { return table[i](); }'
write tools/base/screen.cc 'int wait(int); int draw() { return wait(0); }'
batched=1 expect 'a circle through a table in a batch' 'tools: circle of 2: tools/base/keys tools/base/screen'
write tools/base/keys.cc 'struct Key { inline Key(); }; int draw(); Key::Key() { draw(); } int wait() { Key key; return 1; }'
write tools/base/screen.cc 'int wait(); int draw() { return wait(); }'
batched=1 expect 'a circle through inline code in a batch' 'tools: circle of 2: tools/base/keys tools/base/screen'
write tools/base/keys.cc 'int draw(); namespace n { struct Key { virtual int press(); virtual int hold() { return draw(); } };
  int Key::press() { return 1; } } int wait() { return 1; }'
write tools/base/screen.cc 'int wait(); int draw() { return wait(); }'
batched=1 expect 'a circle through a virtual function in a batch' 'tools: circle of 2: tools/base/keys tools/base/screen'
write tools/base/screen.cc 'namespace n { int level = 2; } int draw() { return n::level; }'
write loader/check/check.cc 'namespace n { extern int level; } int check() { return n::level; }'
batched=1 expect 'data of a batch' 'loader: loader/check/check -> tools/base/screen (n::level)'
[ $failures = 0 ]

python3 "$here/layers.py" --build "$build"
