"""`cprjob bench priority`: the effect of saving strategies, measured on real data."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from cpr_contract.codec import from_json
from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES
from cpr_contract.requests import Outcome, TrialReport
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_document
from cpr_operator.cli.command_errors import OptionError, TrialError
from cpr_operator.cli.document import parse_change, set_value
from cpr_operator.cli.trainer_process import progress_bar, run_role, trial_progress
from cprjob_bench.bench_documents import Saved, Saving, SavingExperiment, SavingReport
from cprjob_bench.commands.bench_result import Result, bench_job, table
from cprjob_bench.commands.strategy_comparison import (
    ANCHORS,
    CONFIDENCE,
    FULL,
    Design,
    Mean,
    Run,
    Score,
    Study,
    design,
    study,
)

_LABEL = "label"
_CRITEO_COLUMNS = 1 + DENSE_FEATURES + CATEGORICAL_FEATURES
#: Rows of a table for each different value of its column, so that values rarely share a row.
_ROWS_PER_VALUE = 2
_TITLES = (
    "strategy",
    "lost samples",
    "lost updates",
    "± se",
    "of all",
    "AUC drop",
    "± se",
    "gain over Full",
    "± se",
    "rows written",
)


@dataclass(frozen=True, slots=True)
class Samples:
    """A file in the Criteo layout: the names of its first columns, and their numbers of distinct values."""

    path: Path
    columns: tuple[str, ...]
    distinct: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """Options of the command; `changes` are PATH=VALUE of the job's spec.

    `Saving` explains interval, anchors and fraction.
    """

    data: Path
    seeds: int
    interval: float
    anchors: int
    fraction: float
    failures: int
    changes: tuple[str, ...]
    json: bool


@contextmanager
def open_samples(path: Path) -> Iterator[TextIO]:
    """Open a plain or gzip file as text. Raises OptionError if it cannot be read as either."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as text:
            yield text
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise OptionError(f"--data {path}: {error}") from error


def prepare(path: Path, folder: Path) -> Samples:
    """Read a file's columns, in the Criteo layout or in that of a table with a header. Raises OptionError.

    A table is tab-separated, with a column `label` of 0 and 1, then categorical columns. It is rewritten into `folder`
    in the Criteo layout, without numbers.
    """
    with open_samples(path) as lines:
        first = lines.readline().rstrip("\n").split("\t")
        if first[0] == _LABEL and 1 < len(first) <= 1 + CATEGORICAL_FEATURES:
            return _rewrite(path, lines, tuple(first[1:]), folder / "samples.tsv")
        if first[0] not in {"0", "1"} or len(first) != _CRITEO_COLUMNS:
            raise OptionError(
                f"--data {path}: the first line is neither a Criteo row of {_CRITEO_COLUMNS} columns nor a header "
                f"of {_LABEL!r} and up to {CATEGORICAL_FEATURES} categorical columns, tab-separated"
            )
    with open_samples(path) as lines:
        values: list[set[str]] = [set() for _ in range(CATEGORICAL_FEATURES)]
        for line in lines:
            for seen, value in zip(values, line.rstrip("\n").split("\t")[1 + DENSE_FEATURES :], strict=False):
                seen.add(value)
    names = tuple(f"c{number}" for number in range(1, CATEGORICAL_FEATURES + 1))
    return Samples(path, names, tuple(map(len, values)))


def job_over(samples: Samples) -> dict[str, Any]:
    """Return a CPRJob of one epoch over samples on 8 shards, small enough for a laptop, with a table per column."""
    tables = [
        {"name": f"t{place}", "rows": max(_ROWS_PER_VALUE * distinct, 1)}
        for place, distinct in enumerate(samples.distinct, start=1)
    ]
    return bench_job(
        "bench",
        model={"embeddingDim": 16, "bottomMlp": [32, 16], "topMlp": [64, 1], "tables": tables},
        data={"format": "Criteo", "uri": str(samples.path.resolve()), "epochs": 1, "batchSize": 128, "seed": 1},
        shards={"replicas": 8},
        snapshots={"store": {"endpoint": "file:///unused", "bucket": "unused"}},
    )


def result(data: str, found: Study) -> Result:
    """Return all results of the study, and a line for each strategy, then the comparisons; `data` names the file."""
    return Result(_document(data, found), _lines(found))


def bench_priority(options: PriorityOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Make the runs and print the comparison; progress goes to `err`.

    Raises OptionError, DocumentError and InvalidSpecError before anything runs, TrialError later.
    """
    found = measure(options, err, environment)
    result(options.data.name, found).show(out, as_json=options.json)


def measure(options: PriorityOptions, err: Console, environment: Mapping[str, str]) -> Study:
    """Make the runs and compare them. Raises as `bench_priority` does."""
    for name, value in (("interval", options.interval), ("fraction", options.fraction)):
        if not 0 < value < 1:
            raise OptionError(f"--{name} {value}: must be above 0 and below 1")
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        document = job_over(prepare(options.data, Path(folder)))
        for keys, value in map(parse_change, options.changes):
            set_value(document, keys, value)
        spec = parse_document(document)
        saving = Saving(FULL, options.interval, options.anchors, options.fraction, ())
        seeds = range(spec.data.seed, spec.data.seed + options.seeds)
        planned = design(saving, options.failures, seeds, spec.shards.replicas)
        job = to_job_spec(spec, uid="bench", name=document["metadata"]["name"])
        with (
            progress_bar(err) as bar,
            closing(_run(job, planned.experiment, environment, trial_progress(bar, planned.names))) as outcomes,
        ):
            return study(runs_of(planned, outcomes))


def runs_of(planned: Design, outcomes: Iterable[tuple[Outcome, Saved | None]]) -> tuple[Run, ...]:
    """Compare each run with failures with that of its seed without. Raises TrialError if this is impossible."""
    without: dict[int, float] = {}
    runs = []
    for (seed, strategy), (outcome, saved) in zip(planned.runs, outcomes, strict=True):
        if outcome.auc is None:
            raise TrialError("AUC is not defined: all scored samples have the same label. Use more samples.")
        if strategy is None:
            without[seed] = outcome.auc
            continue
        assert saved is not None  # noqa: S101 -- the trial has `saving`
        runs.append(
            Run(
                seed=seed,
                strategy=strategy,
                auc=outcome.auc,
                auc_drop=without[seed] - outcome.auc,
                pls=outcome.pls,
                plu=outcome.lost_row_updates / saved.row_updates,
                lost_row_updates=outcome.lost_row_updates,
                rows_written=saved.rows_written,
                tracker_bytes=saved.tracker_bytes,
            )
        )
    if not any(run.pls and run.plu for run in runs):
        raise TrialError("Nothing was lost, because every failure fell on a save. Use more --failures or samples.")
    return tuple(runs)


def _rewrite(path: Path, lines: TextIO, columns: tuple[str, ...], target: Path) -> Samples:
    """Write the lines after the header in the Criteo layout."""
    values: list[set[str]] = [set() for _ in columns]
    numbers, rest = [""] * DENSE_FEATURES, [""] * (CATEGORICAL_FEATURES - len(columns))
    with target.open("w", encoding="utf-8") as out:
        for number, line in enumerate(lines, start=2):
            label, *cells = line.rstrip("\n").split("\t")
            if len(cells) != len(columns):
                raise OptionError(f"--data {path}: line {number} has {1 + len(cells)} columns, not {1 + len(columns)}")
            for seen, value in zip(values, cells, strict=True):
                seen.add(value)
            out.write("\t".join([label, *numbers, *cells, *rest]) + "\n")
    return Samples(target, columns, tuple(map(len, values)))


def _document(data: str, found: Study) -> dict[str, Any]:
    return {
        "data": data,
        "confidence": CONFIDENCE,
        "seeds": len({run.seed for run in found.runs}),
        "strategies": {score.strategy: _as_json(score) for score in found.scores},
        "best": found.best,
        "second": found.second,
        "margin": _mean(found.margin),
        "significant": found.margin.distinguishable,
        "predictors": {
            "portion_of_lost_samples": asdict(found.samples),
            "portion_of_lost_updates": asdict(found.updates),
            "gain_of_updates": _mean(found.gain),
        },
        "runs": [asdict(run) for run in found.runs],
    }


def _lines(found: Study) -> Iterator[str | Table]:
    shown = table(*_TITLES)
    for score in found.scores:
        shown.add_row(*_cells(score))
    yield shown
    yield from ("", _winner(found), *_comparisons(found), *_predictors(found))


def _as_json(score: Score) -> dict[str, Any]:
    return {
        "lost_row_updates": _mean(score.lost_row_updates),
        "portion_of_lost_updates": score.plu,
        "portion_of_lost_samples": score.pls,
        "auc_drop": _mean(score.auc_drop),
        "auc_drop_against_full": None if score.against_full is None else _mean(score.against_full),
        "auc_drop_against_anchors": None if score.against_anchors is None else _mean(score.against_anchors),
        "rows_written": score.rows_written,
        "tracker_bytes": score.tracker_bytes,
    }


def _mean(value: Mean) -> dict[str, Any]:
    return {**asdict(value), "distinguishable": value.distinguishable}


def _cells(score: Score) -> Iterator[str]:
    yield from (score.strategy, f"{score.pls:.4f}")
    yield from (f"{score.lost_row_updates.mean:,.0f}", f"{score.lost_row_updates.error:,.0f}", f"{score.plu:.4f}")
    yield from (f"{score.auc_drop.mean:.6f}", f"{score.auc_drop.error:.6f}")
    full = score.against_full
    yield from ("", "") if full is None else (f"{-full.mean:+.6f}", f"{full.error:.6f}")
    yield f"{score.rows_written:,.0f}"


def _winner(found: Study) -> str:
    sure = "significant" if found.margin.distinguishable else "not significant"
    return (
        f"[bold]{found.best} loses the least AUC[/bold], {found.margin.mean:.2g} less than {found.second} "
        f"({_interval(found.margin)}): {sure}."
    )


def _comparisons(found: Study) -> Iterator[str]:
    for score in found.scores:
        for other, difference in ((FULL, score.against_full), (ANCHORS, score.against_anchors)):
            if difference is not None:
                yield f"{_against(score.strategy, other, difference)} ({_interval(difference)})."


def _against(strategy: str, other: str, difference: Mean) -> str:
    if not difference.distinguishable:
        return f"The difference between {strategy} and {other} is not significant: {difference.mean:+.2g} AUC drop"
    better = "better" if difference.mean < 0 else "worse"
    return f"{strategy} is {better} than {other}: {difference.mean:+.2g} AUC drop"


def _predictors(found: Study) -> Iterator[str]:
    for name, predictor in (("samples", found.samples), ("row updates", found.updates)):
        correlation = "-" if predictor.correlation is None else f"{predictor.correlation:.2f}"
        yield (
            f"Predicted from the fraction of lost {name}: {predictor.slope:.3g} AUC per unit, "
            f"correlation {correlation}, error {predictor.error:.2g} on held-out seeds."
        )
    if not found.gain.distinguishable:
        yield "Neither predicts the AUC drop significantly better than the other."
    else:
        better = "row updates" if found.gain.mean > 0 else "samples"
        yield f"The fraction of lost {better} predicts the AUC drop significantly better."


def _interval(value: Mean) -> str:
    return f"{CONFIDENCE:.0%} interval {value.low:+.2g} to {value.high:+.2g}"


def _run(
    job: JobSpec, experiment: SavingExperiment, environment: Mapping[str, str], report: Callable[[TrialReport], None]
) -> Generator[tuple[Outcome, Saved | None]]:
    """Run all trials and yield their outcomes in order. Close it to end the process. Raises TrialError."""
    with closing(run_role("priority", job, experiment, environment, package="cprjob_bench")) as lines:
        for line in lines:
            found = from_json(SavingReport, line)
            report(found.report)
            if found.report.outcome is not None:
                yield found.report.outcome, found.saved
