"""`python -m cprjob_serving apply BASE DELTA NEW`: applies changed rows to a model, in a new folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cprjob_serving.exported import DeltaError, apply_delta


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cprjob_serving")
    commands = parser.add_subparsers(dest="command", required=True)
    apply = commands.add_parser("apply", help="apply changed rows to a model")
    apply.add_argument("base", type=Path, help="the folder of a model")
    apply.add_argument("delta", type=Path, help="a folder of `cprjob export --since`, since the model's anchor")
    apply.add_argument("new", type=Path, help="the folder to create")
    options = parser.parse_args()
    try:
        apply_delta(options.base, options.delta, options.new)
    except (DeltaError, OSError) as error:
        print(f"cannot apply: {error}", file=sys.stderr)  # noqa: T201 -- a command
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
