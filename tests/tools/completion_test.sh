#!/usr/bin/env bash
# Tests completion in zsh and fish, if they are installed. The test of the documents covers bash.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
export PATH=$build/bin:$PATH

fail() {
  echo "completion_test: $*" >&2
  exit 1
}

if command -v zsh >/dev/null; then
  zsh -n tools/completion/_fibshim || fail "zsh does not read its file"
fi
if command -v fish >/dev/null; then
  offers() { # line, word
    fish -c "source tools/completion/fibshim.fish; complete -C '$1'" | grep -x >/dev/null -- "$2" ||
      fail "fish does not offer '$2' for '$1'"
  }
  offers 'fibshim ch' check
  offers 'fibshim check --f' --fix
  offers 'fibshim run --mode ' observe
fi
