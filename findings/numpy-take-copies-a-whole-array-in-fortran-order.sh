#!/usr/bin/env bash
# numpy's `take` along the first axis copies the whole array first, if that is in Fortran order; an index does not.
#
# Versions: numpy 2.4.6, Python 3.11.
# Expected: a.take(rows, axis=0, out=o) reads the rows, in any memory order, as a[rows] does. `take` is the faster of
#   the two on arrays in C order, and its documentation names no cost of another order.
# Seen: for 10 rows of 8 MB in Fortran order it allocates 8 MB; a[rows] allocates the result. With out= and
#   mode="clip", which saves a copy of the result, it is the same. The time grows with the array, not with the rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6
"$folder/venv/bin/python" - >"$folder/seen" <<'PYTHON'
import tracemalloc

import numpy as np

ROWS = np.arange(10)


def allocated_mb(call):
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(peak / 1e6)


out = np.empty((10, 2), np.float32)
for order in "CF":
    array = np.zeros((1_000_000, 2), np.float32, order)
    print(order, "index:", allocated_mb(lambda: array[ROWS]), "MB")
    print(order, "take:", allocated_mb(lambda: array.take(ROWS, axis=0)), "MB")
    print(order, "take, out:", allocated_mb(lambda: array.take(ROWS, axis=0, out=out, mode="clip")), "MB")
PYTHON
diff - "$folder/seen" <<'SEEN'
C index: 0 MB
C take: 0 MB
C take, out: 0 MB
F index: 0 MB
F take: 8 MB
F take, out: 8 MB
SEEN
echo "as seen"
