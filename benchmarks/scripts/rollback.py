"""The costs of one lost shard by recovery mode: .venv/bin/python benchmarks/scripts/rollback.py [--repeats N].

Runs the quickstart job without a failure, with partial and with full recovery, in turn, and prints the median
excess of each over the run without a failure. On a shared machine only the ratio of the two is meaningful.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
WITHOUT_REPLAY = ("--set", 'recovery.replay.mode="Off"')
WAYS = {
    "no failure": (),
    "partial": ("--kill", "shard/1@0.5:POD", "--set", "recovery.mode=Partial", *WITHOUT_REPLAY),
    "full": ("--kill", "shard/1@0.5:POD", "--set", "recovery.mode=Full", *WITHOUT_REPLAY),
}


def train(options: tuple[str, ...]) -> float:
    """Run the job once; return the seconds that its samples took, recovery included."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        cprjob = Path(sys.executable).with_name("cprjob")
        command: list[str | Path] = [
            cprjob,
            "run",
            EXAMPLE,
            "--workdir",
            Path(folder, "work"),
            "--report",
            report,
            *options,
        ]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- our own command
        found = json.loads(report.read_text())
    return float(found["samples"]) / float(found["samples_per_s"])


def main() -> None:
    """Run all ways in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in track(range(repeats), "rounds"):
        for way, options in WAYS.items():
            seconds[way].append(train(options))
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    table = Table("way", "training time, s", "excess, s")
    for way, median in medians.items():
        table.add_row(way, f"{median:.1f}", f"{median - medians['no failure']:.1f}")
    console = Console()
    console.print(table)
    excess = {way: median - medians["no failure"] for way, median in medians.items()}
    console.print(f"partial recovery costs {excess['partial'] / excess['full']:.2f} of what full recovery costs")


if __name__ == "__main__":
    main()
