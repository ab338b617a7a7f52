"""Writes clicks for stream.yaml as JSON lines: a file every few seconds, each under its name only once it is complete.

python examples/stream_clicks.py FOLDER [--every SECONDS] [--rows ROWS] [--files FILES]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import time
from pathlib import Path


def write_file(folder: Path, number: int, rows: int) -> Path:
    """Write the file of this number: names sort in the order of writing, so none comes late."""
    draw = random.Random(number)
    lines = []
    for _ in range(rows):
        user, item, age = draw.randrange(20_000), draw.randrange(2_000), draw.randrange(18, 80)
        liking = random.Random(item).gauss(0, 2)  # each item has a liking of its own, which a model can learn
        click = int(draw.random() < 1 / (1 + math.exp(-liking)))
        lines.append(json.dumps({"click": click, "age": age, "user": f"u{user}", "item": f"i{item}"}))
    path = folder / f"clicks-{number:09}.jsonl"
    hidden = path.with_suffix(".part")
    hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return hidden.rename(path)


def main() -> None:
    """Write files until all are written, or until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Write clicks as JSON lines, a file every few seconds.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two files")
    parser.add_argument("--rows", type=int, default=2000, help="rows of each file")
    parser.add_argument("--files", type=int, help="the number of files; default: until Ctrl-C")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    first = 1 + max((int(path.stem.rpartition("-")[2]) for path in options.folder.glob("clicks-*.jsonl")), default=0)
    number = first
    while options.files is None or number < first + options.files:
        sys.stdout.write(f"{write_file(options.folder, number, options.rows)}\n")
        sys.stdout.flush()
        number += 1
        time.sleep(options.every)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
