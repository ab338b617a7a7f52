#!/usr/bin/env bash
# pyiceberg's compiled decoder of Avro returns a double as the nearest float32, so that scans of a table that is
# partitioned by a double leave rows out.
#
# Versions: pyiceberg 0.12.0 (wheel for Linux, x86-64), pyarrow 25.0.0, Python 3.11.
# Expected: a row that was appended with p = 0.1 is found by the filter p == 0.1; both decoders return the same number.
# Seen: the manifest has the eight bytes of 0.1. The compiled decoder returns 0.10000000149011612, the decoder in Python
#   returns 0.1. Planning compares the first with the filter, and skips the file. A value that float32 has, such as 0.25,
#   is found. A scan without a filter returns all rows, because it takes the column from the data file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'pyiceberg==0.12.0' pyarrow==25.0.0 sqlalchemy==2.0.50
"$folder/venv/bin/python" - "$folder/warehouse" >"$folder/seen" 2>"$folder/errors" <<'PYTHON' || { cat "$folder/errors" >&2; exit 1; }
import io
import sys

import pyarrow as pa
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

written = io.BytesIO()
BinaryEncoder(written).write_double(0.1)
print("compiled:", new_decoder(written.getvalue()).read_double())
print("Python:", StreamingBinaryDecoder(written.getvalue()).read_double())

catalog = InMemoryCatalog("c", warehouse=sys.argv[1])
catalog.create_namespace("n")
schema = Schema(NestedField(1, "p", DoubleType(), required=False), NestedField(2, "x", LongType(), required=False))
by_p = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
table = catalog.create_table("n.clicks", schema=schema, partition_spec=by_p)
table.append(pa.table({"p": [0.1, 0.25], "x": [1, 2]}))
for rows in ("p == 0.1", "p == 0.25"):
    print(f"{rows}:", table.scan(row_filter=rows).to_arrow()["x"].to_pylist())
print("all:", sorted(table.scan().to_arrow()["x"].to_pylist()))
PYTHON
diff - "$folder/seen" <<'SEEN'
compiled: 0.10000000149011612
Python: 0.1
p == 0.1: []
p == 0.25: [2]
all: [1, 2]
SEEN
echo "as seen"
