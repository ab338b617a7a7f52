"""Compare the training speed of two checkouts: `.venv/bin/python tools/compare_builds.py OLD NEW --trainers 2`.

The same checkout twice compares two kinds of tables: `. . --new-table '{"ids": "Dynamic"}'`.

Both checkouts, each after `make env`, train the job of `cprjob bench train` at the same time, but one of them is always
stopped by SIGSTOP: they run in slices of a second or two. A machine that becomes slower or faster in the meantime is so
for both. Each ratio is that of a pair of windows of several slices. It exits with 1 if a
member of a job is replaced in the meantime.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cpr_contract import env
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_operator.api.validate import parse_job
from cprjob_bench.commands.systems import read_trace, set_container_fields
from cprjob_bench.commands.train_bench import BATCH_SIZE, document, write_samples
from cprjob_bench.options import TrainPreset

_TRACE = "steps.jsonl"
_WARM_STEPS = 20
_SAVE_INTERVAL_S = 10


@dataclass
class Build:
    """A checkout that trains in `folder`. slices: from when to when it has run, in seconds of the monotonic clock."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    slices: list[tuple[float, float]] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the job."""
        for pid in _family(self.process.pid):
            with suppress(ProcessLookupError):  # it ended after the listing
                os.kill(pid, number)

    def run_for(self, seconds: float) -> None:
        """Run for some seconds, then stop."""
        self.signal(signal.SIGCONT)
        began = time.monotonic()
        time.sleep(seconds)
        self.slices.append((began, time.monotonic()))
        self.signal(signal.SIGSTOP)

    def steps(self) -> list[TracedStep]:
        """Return the steps of the first trainer."""
        return read_trace(next(self.folder.glob(f"work/pods/*-{env.ROLE_TRAINER}-0-1/volumes/*/{_TRACE}"), None))

    def check(self, members: int) -> None:
        """Exit if the job has ended, or a member was replaced."""
        pods = list(self.folder.glob("work/pods/*"))
        if self.process.poll() is not None or len(pods) > members:
            log = (self.folder / "log").read_text(errors="replace")
            sys.exit(f"{self.name}: the job ended or replaced a member\n{log}")


def main() -> None:
    """Parse the arguments, run both jobs, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--preset", type=TrainPreset, default=TrainPreset.KAGGLE)
    parser.add_argument("--rows", type=int, default=100_000, help="maximum number of rows per table")
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="compute threads per trainer")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--old-table", type=json.loads, default={}, help="fields of each table of OLD's job, as JSON")
    parser.add_argument("--new-table", type=json.loads, default={}, help="fields of each table of NEW's job, as JSON")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--slices", type=int, default=8, help="slices of each checkout in a window")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a slice")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as name, ExitStack() as stack:
        folder = Path(name)
        old, new = (
            stack.enter_context(_started(label, checkout.resolve(), folder, table, options))
            for label, checkout, table in (
                ("old", options.old, options.old_table),
                ("new", options.new, options.new_table),
            )
        )
        while min(len(old.steps()), len(new.steps())) < _WARM_STEPS:
            old.check(options.trainers + options.shards)
            new.check(options.trainers + options.shards)
            time.sleep(0.5)
        new.signal(signal.SIGSTOP)
        old.signal(signal.SIGSTOP)
        for index in range(options.pairs * options.slices):
            # The order alternates, because the second one finds what the first one left in the caches.
            for build in (old, new) if index % 2 == 0 else (new, old):
                build.run_for(options.seconds)
                build.check(options.trainers + options.shards)
        sys.stdout.writelines(f"{line}\n" for line in _lines(old, new, options.slices))


@contextmanager
def _started(
    name: str, checkout: Path, folder: Path, table: dict[str, Any], options: argparse.Namespace
) -> Iterator[Build]:
    """Start `cprjob run` of a checkout; in the end kill all its processes. table: fields of each table."""
    place, samples = folder / name, folder / "samples.tsv"
    place.mkdir()
    job = document(
        options.preset,
        rows=options.rows,
        trainers=options.trainers,
        shards=options.shards,
        workers=options.workers,
        precision=options.precision,
        samples=samples,
        store=place / "store",
        interval_s=_SAVE_INTERVAL_S,
    )
    for each in job["spec"]["model"]["tables"]:
        each.update(table)
    if not samples.exists():
        write_samples(parse_job(job, uid="comparison"), samples, os.environ)
    set_container_fields(job, {"env": [{"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{_TRACE}"}]})
    (place / "job.yaml").write_text(yaml.safe_dump(job))
    command = (".venv/bin/cprjob", "run", str(place / "job.yaml"), "--workdir", str(place / "work"))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=checkout, stdout=log, stderr=log)  # noqa: S603 -- our own program
    build = Build(name, place, process)
    try:
        yield build
    finally:
        build.signal(signal.SIGKILL)
        build.process.wait()


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    family = [pid]
    for parent in family:
        with suppress(OSError):  # it ended after the listing
            for task in Path(f"/proc/{parent}/task").iterdir():
                family += map(int, (task / "children").read_text("ascii").split())
    return family


def _lines(old: Build, new: Build, slices: int) -> Iterator[str]:
    """Yield the ratio of each pair, the medians of a trainer's stages, and the median of the ratios."""
    ratios = []
    for pair, (before, after) in enumerate(zip(_rates(old, slices), _rates(new, slices), strict=True), start=1):
        ratios.append(after / before)
        yield f"pair {pair}: old {before:,.0f}, new {after:,.0f} samples/s, ratio {ratios[-1]:.3f}"
    for build in (old, new):
        stages: dict[str, list[float]] = {}
        for step in build.steps()[_WARM_STEPS:]:
            for stage, seconds in step.stages_s.items():
                stages.setdefault(stage, []).append(seconds * 1e3)
        medians = (f"{stage} {statistics.median(durations):.2f}" for stage, durations in stages.items())
        yield f"{build.name}, ms per step of a trainer: {', '.join(medians)}"
    yield f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f}"


def _rates(build: Build, slices: int) -> Iterator[float]:
    """Yield the samples per second of each window."""
    ends = [step.ended_s for step in build.steps()]
    for first in range(0, len(build.slices), slices):
        window = build.slices[first : first + slices]
        steps = sum(bisect_right(ends, end) - bisect_right(ends, begin) for begin, end in window)
        yield steps * BATCH_SIZE / sum(end - begin for begin, end in window)


if __name__ == "__main__":
    main()
