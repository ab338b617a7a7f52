from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cpr_operator.cli.app import app
from cpr_operator.cli.console import OptionError
from cprjob_bench.commands.snapshot import bench_store, result, summarise
from cprjob_bench.documents import Contest, Cut, Figures, Latency, Round, Window

GIB, MIB = 1 << 30, 1 << 20


def a_window(ms: float) -> Window:
    return Window(100, lookup=Latency(ms, 2 * ms), push=Latency(3 * ms, 4 * ms))


def figures() -> Figures:
    return Figures(
        table_bytes=GIB // 2,
        saved_bytes=GIB // 2 + 100,
        save=(Contest(1.0, 0.5, 0.5, 0.1), Contest(0.5, 0.25, 0.1, 0.2), Contest(0.25, 1.0, 0.25, 0.3)),
        restore=(Contest(0.25, 0.1, 0.5, 0.2),),
        rounds=(
            Round(a_window(1.0), a_window(1.5), 0.001),
            Round(a_window(2.0), a_window(4.0), 0.002),
            Round(a_window(5.0), a_window(5.0), 0.009),
        ),
        extra_memory_bytes=51 * MIB,
        trackers=(0, 8 * MIB),
        cuts=(
            Cut("Full", 32, 1000, 4 * MIB, 0.4),
            Cut("Full", 2, 1000, MIB // 2, 0.3),
            Cut("MFU", 32, 125, MIB, 0.2),
            Cut("MFU", 2, 125, MIB // 4, 0.1),
        ),
    )


def test_speeds_are_medians_and_their_ratio_is_that_of_the_pairs() -> None:
    save = summarise(figures()).save
    assert (save.gib_s, save.raw_gib_s) == (1.0, 2.0)
    assert save.of_raw == 0.5, "of 0.5, 0.2 and 1: not the ratio of the medians of a disturbed machine"
    assert (save.cpu_s_per_gib, save.raw_cpu_s_per_gib) == (1.0, 0.4)
    assert summarise(figures()).restore.of_raw == 2.0


def test_what_training_waits_is_compared_within_each_round() -> None:
    summary = summarise(figures())
    assert (summary.lookup_p50_ms.idle, summary.lookup_p50_ms.saving, summary.lookup_p50_ms.ratio) == (2.0, 4.0, 1.5)
    assert (summary.lookup_p99_ms.idle, summary.push_p50_ms.idle, summary.push_p99_ms.idle) == (4.0, 6.0, 8.0)
    assert summary.pause_ms == 2.0


def test_the_answer_for_programs() -> None:
    found = result({"rows": 7}, ("Full", "MFU"), figures()).document
    assert found["rows"] == 7
    assert found["shard_mib"] == 512
    assert found["save"]["gib_s"] == 1.0
    assert found["push_p99_ms"] == {"idle": 8.0, "saving": 16.0, "ratio": 1.5}
    assert found["extra_memory_mib"] == 51
    assert found["bytes"] == {"Full": {"32": 4 * MIB, "2": MIB // 2}, "MFU": {"32": MIB, "2": MIB // 4}}
    assert found["seconds"]["MFU"] == {"32": 0.2, "2": 0.1}
    assert found["rows_saved"] == {"Full": 1000, "MFU": 125}
    assert found["tracker_bytes"] == {"Full": 0, "MFU": 8 * MIB}


def test_memory_that_the_system_does_not_tell_is_not_told() -> None:
    unknown = replace(figures(), extra_memory_bytes=None)
    assert result({}, ("Full", "MFU"), unknown).document["extra_memory_mib"] is None
    assert "Memory" not in printed(unknown)


def printed(found: Figures) -> str:
    console = Console(file=io.StringIO(), width=120)
    result({}, ("Full", "MFU"), found).show(console, as_json=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_answer_for_people() -> None:
    lines = [line.split() for line in printed(figures()).splitlines()]
    assert ["save", "1.00", "2.00", "50%", "1.00", "0.40"] in lines
    assert ["push,", "p99", "8.00", "16.00", "1.50"] in lines
    assert ["MFU", "125", "1.0", "0.2", "8.0"] in lines
    assert "Pause at a cut: 2.00 ms." in printed(figures())
    assert "Memory beyond the tables: 51.0 MiB, 10.0% of them." in printed(figures())


def test_a_bucket_is_named_with_its_endpoint() -> None:
    with bench_store("s3://saves/of/mine/", "http://127.0.0.1:9000") as store:
        assert store == {"endpoint": "http://127.0.0.1:9000", "bucket": "saves", "prefix": "of/mine"}


@pytest.mark.parametrize("stated", [True, False])
def test_a_folder_is_used_and_left_as_it_was(tmp_path: Path, *, stated: bool) -> None:
    with bench_store(tmp_path.as_uri() if stated else None, None) as store:
        folder = Path(store["endpoint"].removeprefix("file://"))
        assert folder.is_dir()
        assert (folder.parent == tmp_path) == stated
        (folder / store["bucket"]).mkdir()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("uri", "endpoint", "says"),
    [
        ("s3://saves", None, "with --endpoint"),
        ("s3://", "http://127.0.0.1", "s3://bucket"),
        ("ftp://somewhere/else", None, "file:///folder"),
        ("file:///tmp", "http://127.0.0.1", "file:///folder"),
        ("file://", None, "file:///folder"),
        (None, "http://127.0.0.1", "file:///folder"),
        ("file:///there/is/no/such/folder", None, "the folder /there/is/no/such/folder does not exist"),
    ],
)
def test_what_is_no_store_is_refused(uri: str | None, endpoint: str | None, says: str) -> None:
    with pytest.raises(OptionError, match=says), bench_store(uri, endpoint):
        pass


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--strategy", "mfu"], 2, "--strategy mfu: must be one of Full, MFU"),
        (["--bits", "5"], 2, "--bits 5: must be one of 32, 8, 4, 3, 2"),
        (["--store", "nowhere:9"], 2, "file:///folder"),
        (["--store", "s3://A", "--endpoint", "not a URL"], 1, "spec.snapshots.store"),
    ],
)
def test_mistakes_are_told_before_anything_runs(arguments: list[str], code: int, says: str) -> None:
    result = CliRunner().invoke(app, ["bench", "snapshot", *arguments])
    assert result.exit_code == code, result.output
    assert says in " ".join(result.output.split())
