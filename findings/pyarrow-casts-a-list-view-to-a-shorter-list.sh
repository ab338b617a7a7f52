#!/usr/bin/env bash
# pyarrow casts an array of list views to lists without the values of the last one, and raises nothing.
#
# Versions: pyarrow 26.0.1, Python 3.11, Linux x86-64.
# Expected: cast() from list_view to list keeps each list, or raises. Both types hold the same lists, and flatten() and
#   to_pylist() of the array itself return all values.
# Seen: the last list is empty, whatever the type of the values. Other lists are right.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" >"$folder/seen" <<'PYTHON'
import pyarrow as pa

for rows in ([["a", "b"]], [["a", "b"], ["c"]], [[1, 2], [3], [4, 5]]):
    views = pa.array(rows, pa.list_view(pa.array(rows[0]).type))
    print(views.to_pylist(), "->", views.cast(pa.list_(views.type.value_type)).to_pylist())
PYTHON
diff - "$folder/seen" <<'SEEN'
[['a', 'b']] -> [[]]
[['a', 'b'], ['c']] -> [['a', 'b'], []]
[[1, 2], [3], [4, 5]] -> [[1, 2], [3], []]
SEEN
echo "as seen"
