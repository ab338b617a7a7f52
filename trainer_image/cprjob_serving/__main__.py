"""`python -m cprjob_serving`: applies changed rows to a model, or follows the published models of a job."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from cprjob_serving.exported import DeltaError, apply_delta
from cprjob_serving.follower import Follower
from cprjob_serving.sources import SourceError


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cprjob_serving")
    commands = parser.add_subparsers(dest="command", required=True)
    apply = commands.add_parser("apply", help="apply changed rows to a model")
    apply.add_argument("base", type=Path, help="the folder of a model")
    apply.add_argument("delta", type=Path, help="a folder of `cprjob export --since`, since the model's anchor")
    apply.add_argument("new", type=Path, help="the folder to create")
    follow = commands.add_parser("follow", help="keep a copy of the newest published model until SIGTERM or SIGINT")
    follow.add_argument("uri", help="the `publish.to` of a job, or a URL at which a web server has it")
    follow.add_argument("folder", type=Path, help="the folder of the copy; its current.json names the model")
    follow.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks (default: 1)")
    options = parser.parse_args()
    try:
        if options.command == "apply":
            apply_delta(options.base, options.delta, options.new)
        else:
            _follow(options.uri, options.folder, options.every)
    except (DeltaError, SourceError, OSError) as error:
        print(f"cannot {options.command}: {error}", file=sys.stderr)  # noqa: T201 -- a command
        return 1
    return 0


def _follow(uri: str, folder: Path, every_s: float) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with Follower(uri, folder, every_s=every_s):
        over.wait()


if __name__ == "__main__":
    sys.exit(main())
