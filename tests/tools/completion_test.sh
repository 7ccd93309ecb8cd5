#!/usr/bin/env bash
# Completion in zsh and fish, where they are installed. Bash's is tested with the documents.
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
