"""The jobs of `cprjob bench redundancy`, and what it makes of windows and kills."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from cpr_operator.api.validate import validate
from cpr_operator.cli.app import app
from cprjob_bench.commands.kills import BEFORE_S, Kill, figures_of, protected_again, rate_ratio, recovery_of
from cprjob_bench.commands.measuring import Machine, Window
from cprjob_bench.commands.modes import (
    FEWEST_SHARDS,
    MODES,
    NO_SAVE_S,
    ROW_BYTES,
    TABLES,
    Contender,
    killed_job,
    read_counts,
    table_rows,
)
from cprjob_bench.commands.redundancy import result
from cprjob_bench.commands.train import document
from cprjob_bench.documents import EAGER, Counts, RedundancyDocument
from cprjob_bench.options import RedundancyMode, TrainPreset
from cprjob_bench.roles.samples import write_sweep as sweep
from support.contract_examples import EXAMPLES

MIB = 2**20
TABLE_BYTES = 100 * MIB


def window(samples_per_s: float, *, sent: float = 500.0, parity: int = 0, log: int = 0, rss: int = 0) -> Window:
    cpu_ms = {"trainer": 40.0, "shard": 1e5 / samples_per_s, "cprjob": 99.0}
    kept = {"parity": parity, "log": log}
    machine = Machine(100.0, 0.0)
    return Window(samples_per_s, 4.0, 9.0, {}, cpu_ms, {"shard": rss}, None, machine, sent, kept)


def kill(seconds: float, meanwhile: float | None = None, core: float | None = 2.0) -> Kill:
    return Kill(seconds, 0.5, core, None if meanwhile is None else seconds + 1, meanwhile, "Parity")


# --- jobs


@pytest.mark.parametrize("mode", list(RedundancyMode))
@pytest.mark.parametrize("size_mib", [1, 64, 2048])
def test_the_job_whose_shards_are_killed_is_valid_and_of_that_size(mode: RedundancyMode, size_mib: int) -> None:
    job = killed_job(size_mib, MODES[mode], Path("/samples.parquet"), Path("/store"))
    assert not validate(job)
    spec, k = job["spec"], MODES[mode].data_shards
    rows = sum(table["rows"] for table in spec["model"]["tables"])
    assert rows * ROW_BYTES / spec["shards"]["replicas"] == pytest.approx(size_mib * MIB, rel=0.01)
    assert spec["shards"]["replicas"] >= max(2, k + 1)
    assert spec["accuracyBudget"] == {"portionOfLostSamples": 0}
    # The store gives back nothing that parity should.
    assert (spec["snapshots"]["interval"]["seconds"] == NO_SAVE_S) == (k > 0)


def test_each_mode_is_the_same_job_with_another_recovery() -> None:
    job = document(
        TrainPreset.KAGGLE,
        rows=1000,
        trainers=1,
        shards=FEWEST_SHARDS,
        workers=1,
        precision="fp32",
        samples=Path("/data/samples.tsv"),
        store=Path("/data/store"),
        interval_s=NO_SAVE_S,
    )
    found: dict[RedundancyMode, dict[str, Any]] = {}
    for mode in RedundancyMode:
        made = Contender(mode, job, {})._document
        assert not validate(made)
        found[mode] = made["spec"]
        for members in ("trainers", "shards"):
            (container,) = made["spec"][members]["template"]["spec"]["containers"]
            assert container["command"][1:] == ["-m", "cprjob_bench"]
            assert (EAGER in {each["name"] for each in container["env"]}) == (mode == RedundancyMode.EAGER)
    assert found[RedundancyMode.NONE]["recovery"] == {"replay": {"mode": "Off"}}
    assert "redundancy" not in found[RedundancyMode.REPLAY]["recovery"]
    ks = [spec["recovery"]["redundancy"]["dataShards"] for spec in list(found.values())[2:]]
    assert ks == [1, 2, 4, 4]
    assert len({json.dumps([spec["model"], spec["data"], spec["snapshots"]]) for spec in found.values()}) == 1


def test_one_pass_over_the_samples_uses_each_row_of_each_table(tmp_path: Path) -> None:
    rows = table_rows(1, 2)
    sweep(rows, TABLES, tmp_path / "samples")
    read = pq.read_table(tmp_path / "samples")
    for table in range(TABLES):
        assert np.array_equal(np.sort(read[f"c{table}"].to_numpy()), np.arange(rows))
    assert set(read["label"].to_pylist()) == {0, 1}


def test_fewer_shards_than_the_largest_parity_needs_are_refused() -> None:
    said = CliRunner().invoke(app, ["bench", "redundancy", "--shards", "4"])
    assert said.exit_code == 2
    assert "--shards 4" in said.output


# --- figures


def ends(*runs: tuple[float, float, float]) -> list[float]:
    """Ends of steps from one time to another, each so long after the last."""
    return [each for first, last, step in runs for each in np.arange(first, last, step).tolist()]


def test_the_rate_meanwhile_is_compared_with_that_before_the_kill() -> None:
    """100 steps a second until 10, none until 12, 50 a second until 16, and 100 again."""
    found = ends((0, 10, 0.01), (12, 16, 0.02), (16, 20, 0.01))
    assert rate_ratio(found, 10.0, 12.0, 16.0) == pytest.approx(0.5, rel=0.02)
    assert rate_ratio(found, 10.0, 12.0, 20.0) == pytest.approx(0.75, rel=0.02)


def test_what_was_long_before_the_kill_does_not_count() -> None:
    found = ends((0, 10 - BEFORE_S, 0.1), (10 - BEFORE_S, 10, 0.01), (12, 16, 0.02))
    assert rate_ratio(found, 10.0, 12.0, 16.0) == pytest.approx(0.5, rel=0.02)


def test_a_few_steps_are_no_rate() -> None:
    found = ends((0, 10, 0.01), (12, 16, 0.02))
    assert rate_ratio(found, 10.0, 12.0, 12.05) is None
    assert rate_ratio(found, 10.0, 12.0, 11.0) is None


@pytest.mark.parametrize(
    ("incarnation", "protected", "again"),
    [
        pytest.param(1, 900, False, id="not-killed-yet"),
        pytest.param(2, None, False, id="without-parity"),
        pytest.param(2, 700, False, id="behind"),
        pytest.param(2, 800, True, id="again"),
        pytest.param(None, None, False, id="away"),
    ],
)
def test_parity_holds_a_shard_again_when_it_holds_its_successor(
    incarnation: int | None, protected: int | None, *, again: bool
) -> None:
    other = replace(EXAMPLES["shard_report"], incarnation=3, protected_samples=900)
    killed = None
    if incarnation is not None:
        killed = replace(EXAMPLES["shard_report"], incarnation=incarnation, protected_samples=protected)
    assert protected_again((killed, other), 800, index=0, former=1) is again


def test_figures_are_medians_and_what_there_is_none_of_has_a_reason() -> None:
    kills = [kill(0.5, 0.9), kill(0.7, 0.8), kill(3.0, None)]
    found = recovery_of(RedundancyMode.PARITY_2, kills)
    assert (found.seconds_to_next_step, found.throughput_while_rebuilding, found.kills) == (0.7, pytest.approx(0.85), 3)
    assert not found.why_null
    replay = recovery_of(RedundancyMode.REPLAY, [kill(1.0, None, None)])
    assert replay.seconds_to_next_step == 1.0
    assert set(replay.why_null) == {"rebuild_gib_per_core_s", "throughput_while_rebuilding", "redundant_again_s"}
    assert "several threads" in replay.why_null["rebuild_gib_per_core_s"]
    assert "no parity" in replay.why_null["redundant_again_s"]
    for mode, why in ((RedundancyMode.NONE, "lost"), (RedundancyMode.EAGER, "ECRec")):
        nothing = recovery_of(mode, [])
        nulls = {name for name, value in asdict(nothing).items() if value is None}
        assert nulls == set(nothing.why_null)
        assert len(nulls) == 5
        assert all(why in reason for reason in nothing.why_null.values())


def test_windows_are_compared_with_those_of_none_in_the_same_repeat() -> None:
    none = [window(1000.0), window(500.0)]
    mine = [
        window(rate, sent=sent, parity=25 * MIB, log=5 * MIB, rss=10 * MIB) for rate, sent in ((900, 700), (450, 800))
    ]
    found = figures_of({RedundancyMode.NONE: none, RedundancyMode.PARITY_4: mine}, {}, TABLE_BYTES)
    parity = found["parity-4"]
    assert parity.throughput_of_none == pytest.approx(0.9)
    assert parity.network_bytes_per_sample == 750.0
    assert (parity.parity_memory, parity.log_memory, parity.extra_memory) == (0.25, 0.05, pytest.approx(0.3))
    assert parity.resident_of_none == pytest.approx(0.1)
    first, second = ((40 + 1e5 / mine) / (40 + 1e5 / its) for mine, its in ((900, 1000), (450, 500)))
    assert parity.processor_of_none == pytest.approx((first + second) / 2), "of members alone"
    assert found["none"].throughput_of_none == found["none"].processor_of_none == 1.0


def test_people_read_two_tables_and_each_reason_once() -> None:
    windows = {mode: [window(1000.0)] for mode in (RedundancyMode.NONE, RedundancyMode.PARITY_1)}
    killed: dict[RedundancyMode, dict[int, Sequence[Kill]]]
    killed = {RedundancyMode.NONE: {64: (), 512: ()}, RedundancyMode.PARITY_1: {64: (kill(0.25, 0.5),), 512: ()}}
    made = RedundancyDocument(
        "kaggle", 1000, 2048, 1, 5, 100.0, 1, 2, figures_of(windows, killed, TABLE_BYTES), {"none": ()}
    )
    shown = result(made)
    said = StringIO()
    shown.show(Console(file=said, width=200), as_json=False)
    lines = said.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("none", "parity-1"))] == ["none", "parity-1"] + [
        "none"
    ] * 2 + ["parity-1"] * 2
    assert any("parity-1" in line and "0.25" in line and "64" in line for line in lines)
    assert sum("goes back to its last save" in line for line in lines) == 1
    told = json.loads(json.dumps(shown.document))
    assert told["modes"]["parity-1"]["recovery"]["64"]["seconds_to_next_step"] == 0.25
    assert math.isclose(told["table_mib"], 100.0)


def test_counts_of_all_pods_are_read_but_not_a_file_that_is_being_made(tmp_path: Path) -> None:
    for pod, counts in (("a", [5, 7, 9]), ("b", [1, 2, 3])):
        folder = tmp_path / "pods" / pod / "volumes" / "scratch"
        folder.mkdir(parents=True)
        np.array(counts, np.int64).tofile(folder / "counts")
    torn = tmp_path / "pods" / "c" / "volumes" / "scratch"
    torn.mkdir(parents=True)
    (torn / "counts").write_bytes(b"abc")
    assert sorted(each.sent_bytes for each in read_counts(tmp_path)) == [1, 5]
    assert read_counts(tmp_path, "a") == [Counts(5, 7, 9)]
