#!/usr/bin/env bash
# pyarrow opens no Parquet file in which Polars wrote a column of 128-bit integers, whichever column is asked for.
#
# Versions: polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1, Python 3.11, Linux x86-64.
# Expected: reading the column `label` alone ignores the types of other columns, as DuckDB does. Parquet itself has no
#   128-bit integer: in the file the column is 16 plain bytes.
# Seen: ArrowNotImplementedError, for read_table(columns=["label"]) and even for read_metadata. pyarrow rebuilds the
#   Arrow schema from the footer's key ARROW:schema before it looks at the columns, and its version of the schema has
#   no such type. The file is readable once the footer has no such key.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
"$folder/venv/bin/python" - "$folder/wide.parquet" >"$folder/seen" <<'PYTHON'
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[1]
pl.DataFrame({"label": [1, 0], "wide": pl.Series([1, 2], dtype=pl.Int128)}).write_parquet(path)
print("duckdb:", duckdb.sql(f"select label from '{path}'").fetchall())
for name, read in {
    "read_table": lambda: pq.read_table(path, columns=["label"]),
    "read_metadata": lambda: pq.read_metadata(path),
}.items():
    try:
        print(f"{name}: {read().num_rows} rows")
    except pa.ArrowNotImplementedError as error:
        print(f"{name}: {error}")
Path(path).write_bytes(Path(path).read_bytes().replace(b"ARROW:schema", b"other_schema"))
print("without the key:", pq.read_table(path, columns=["label"]).to_pydict())
PYTHON
diff - "$folder/seen" <<'SEEN'
duckdb: [(1,), (0,)]
read_table: Integers with more than 64 bits not implemented
read_metadata: Integers with more than 64 bits not implemented
without the key: {'label': [1, 0]}
SEEN
echo "as seen"
