"""Compare the modes of denseSync: benchmarks/scripts/dense_sync.py CRITEO_FILE [--seeds N] [--slowed].

Trains a small model on rows in the Criteo layout with two trainers in each mode, and prints AUC, the mean over the
seeds of its distance to AllReduce, and the steps per second of trainer 0. With `--slowed` trainer 1 is suspended half
of the time (SIGSTOP), which shows the cost of waiting for it.
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
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cpr_contract import env
from cpr_contract.trace import STEP_TRACE, TracedStep

MODES = ("AllReduce", "ShadowMA", "ShadowBMUF", "ShadowEASGD")
#: Seconds for which the slowed trainer is suspended, and then runs.
PERIOD_S = 0.1
TRACE = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class Outcome:
    """auc: progressive. steps_per_s: of trainer 0, from its first step to its last."""

    auc: float
    steps_per_s: float


def job(data: Path, mode: str, seed: int) -> dict[str, object]:
    """Return the CPRJob: 26 small tables, batches of 128."""
    container = {"name": env.MAIN_CONTAINER, "env": [{"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{TRACE}"}]}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "cprjob.io/v1alpha1",
        "kind": "CPRJob",
        "metadata": {"name": "dense-sync"},
        "spec": {
            "image": "local",
            "accuracyBudget": {"portionOfLostSamples": 0.1},
            "model": {
                "embeddingDim": 8,
                "bottomMlp": [32, 8],
                "topMlp": [32, 1],
                "tables": [{"name": f"c{number}", "rows": 2000} for number in range(26)],
                "denseOptimizer": {"kind": "Adagrad", "learningRate": 0.02},
                "sparseOptimizer": {"learningRate": 0.02},
            },
            "data": {"format": "Criteo", "uri": data.resolve().as_uri(), "epochs": 1, "batchSize": 128, "seed": seed},
            "trainers": {"replicas": 2, "denseSync": mode, "template": template},
            "shards": {"replicas": 2},
            "snapshots": {"store": {"endpoint": "file:///unused", "bucket": "saves"}},
        },
    }


def train(data: Path, mode: str, seed: int, *, slowed: bool) -> Outcome:
    """Run one job to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document, report, work = folder / "job.yaml", folder / "report.json", folder / "work"
        document.write_text(yaml.safe_dump(job(data, mode, seed)))
        cprjob = Path(sys.executable).with_name("cprjob")
        over = threading.Event()
        slower = threading.Thread(target=slow_down, args=(work, over))
        if slowed:
            slower.start()
        try:
            command: list[str | Path] = [cprjob, "run", document, "--workdir", work, "--report", report]
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- our own command
        finally:
            over.set()
        if slowed:
            slower.join()
        (trace,) = work.glob(f"pods/*-trainer-0-1/volumes/*/{TRACE}")
        steps = [TracedStep.of_line(line) for line in trace.read_text().splitlines()]
        seconds = steps[-1].ended_s - steps[0].ended_s
        return Outcome(float(json.loads(report.read_text())["auc"]), (len(steps) - 1) / seconds)


def slow_down(work: Path, over: threading.Event) -> None:
    """Suspend trainer 1 of the job below `work` for every other period, once it trains."""
    while not over.is_set() and not any(work.glob(f"pods/*-trainer-1-1/volumes/*/{TRACE}")):
        time.sleep(PERIOD_S)
    while not over.is_set():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in processes(work):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)
            time.sleep(PERIOD_S)


def processes(work: Path) -> list[int]:
    """Return the processes of trainer 1."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(work).encode() in variables and b"-trainer-1-1/" in variables:
            found.append(int(folder.name))
    return found


def main() -> None:
    """Run all modes in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="a file in the Criteo layout")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slowed", action="store_true", help="suspend trainer 1 half of the time")
    options = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {mode: [] for mode in MODES}
    for seed in track(range(1, options.seeds + 1), "seeds"):
        for mode in MODES:
            outcomes[mode].append(train(options.data, mode, seed, slowed=options.slowed))
    table = Table("mode", "AUC, mean", "to AllReduce, mean", "to AllReduce, range", "steps/s of trainer 0, median")
    for mode, found in outcomes.items():
        gaps = [own.auc - lockstep.auc for own, lockstep in zip(found, outcomes["AllReduce"], strict=True)]
        table.add_row(
            mode,
            f"{statistics.fmean(each.auc for each in found):.4f}",
            f"{statistics.fmean(gaps):+.4f}",
            f"{min(gaps):+.4f} to {max(gaps):+.4f}",
            f"{statistics.median(each.steps_per_s for each in found):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
