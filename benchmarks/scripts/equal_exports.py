"""Compare the values of two exports: .venv/bin/python benchmarks/scripts/equal_exports.py ONE OTHER [--ratio R].

Prints the largest norm of a tensor's difference as a ratio to the norm of the tensor. Exits with 1 above the ratio, or
if the exports have other files or tensors. On a GPU, sums of many threads differ by rounding.
"""

from __future__ import annotations

import argparse
import sys
from math import isnan
from pathlib import Path

from safetensors.torch import load_file


def largest_ratio(one: Path, other: Path) -> float:
    """Return the largest ratio over all tensors. Raises SystemExit for other files or tensors."""
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors")) for folder in (one, other)]
    if not files[0] or files[0] != files[1]:
        sys.exit(f"{one} and {other} have other files")
    largest = 0.0
    for file in files[0]:
        mine, its = load_file(one / file), load_file(other / file)
        if mine.keys() != its.keys():
            sys.exit(f"{file} has other tensors")
        for name, values in mine.items():
            ratio = float((its[name] - values).norm() / values.norm().clamp(min=1e-12))
            largest = max(largest, float("inf") if isnan(ratio) else ratio)
    return largest


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--ratio", type=float, default=0.0, help="the largest ratio that is allowed")
    options = parser.parse_args()
    found = largest_ratio(options.one, options.other)
    sys.stdout.write(f"largest norm of a difference: {found:.2g} of the norm of the values\n")
    sys.exit(found > options.ratio)


if __name__ == "__main__":
    main()
