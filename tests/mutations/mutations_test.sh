#!/bin/sh
# The text of each fault stands in the tree, so that `make mutations` can put it in.
exec "$(dirname "$0")/run.py" --check
