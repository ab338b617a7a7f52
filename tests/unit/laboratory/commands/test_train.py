from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cpr_contract import processor
from cpr_contract.codec import to_json
from cpr_contract.spec import JobSpec
from cpr_contract.trace import TracedStep
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.app import app
from cpr_operator.cli.asking import TrialError
from cpr_operator.cli.console import OptionError
from cprjob_bench.commands import measuring, train
from cprjob_bench.commands.contenders import Program, peer_commands, read_trace
from cprjob_bench.commands.measuring import (
    Machine,
    Window,
    processor_s,
    summarise,
    time_stages,
    time_steps,
    usage,
)
from cprjob_bench.commands.train import document, result
from cprjob_bench.options import TrainPreset

MACHINE = Machine(100.0, 0.0)


def job(preset: TrainPreset = TrainPreset.KAGGLE) -> dict[str, Any]:
    places = {"samples": Path("/data/samples.tsv"), "store": Path("/data/store")}
    return document(preset, rows=1000, trainers=1, shards=2, workers=2, precision="bf16", interval_s=5, **places)


def spec() -> JobSpec:
    return to_job_spec(parse_spec(job()["spec"]), uid="u", name="n")


def window(samples_per_s: float, p99_ms: float = 9.0, rss: int = 2**20) -> Window:
    return Window(
        samples_per_s, 4.0, p99_ms, {"trainer": {"compute": 3.0}}, {"trainer": 2.0}, {"trainer": rss}, 1, MACHINE
    )


@pytest.mark.parametrize("preset", list(TrainPreset))
def test_each_preset_is_a_valid_job_of_26_tables_of_no_more_rows_than_asked(preset: TrainPreset) -> None:
    made = job(preset)
    assert not validate(made)
    parsed = to_job_spec(parse_spec(made["spec"]), uid="u", name="n")
    rows = [table.rows for table in parsed.model.tables]
    assert len(rows) == 26
    assert max(rows) == 1000
    assert min(rows) == 3
    assert (parsed.precision, parsed.workers) == ("bf16", 2)


# --- windows


def test_a_window_times_the_steps_that_end_in_it() -> None:
    steps = [TracedStep(n, 0.1 * n, {"compute": 0.02, "save": 0.5 if n == 150 else 0.0}) for n in range(1, 301)]
    steps[-1] = TracedStep(300, 99.0, {"compute": 9.0})
    timing = time_steps(steps, 10.0, 30.0, batch_size=50)
    assert timing.samples_per_s == pytest.approx(500)
    assert timing.p50_ms == pytest.approx(100)
    assert timing.p99_ms == pytest.approx(100)
    stages = time_stages({"trainer": steps, "shard": []}, 10.0, 30.0)
    assert stages == {"trainer": {"compute": pytest.approx(20), "save": pytest.approx(500 / 200)}, "shard": {}}


def test_slow_steps_show_in_the_high_percentile_and_in_the_rate() -> None:
    ends = [0.1 * n + (1.0 if n >= 100 else 0.0) for n in range(200)]
    timing = time_steps([TracedStep(n, end, {}) for n, end in enumerate(ends)], 0.0, 100.0, batch_size=1)
    assert timing.p50_ms == pytest.approx(100)
    assert timing.samples_per_s == pytest.approx(199 / 20.9)
    assert max(timing.p99_ms, timing.p50_ms) < 1100


class Slow:
    """A contender, and its run. After the warm-up each look finds one more step, and each 30th one more cut."""

    name = "slow"

    def __init__(self) -> None:
        self.steps = [TracedStep(n, 0.0, {}) for n in range(60)]
        self.looks = 0

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[Slow]:
        yield self

    def traces(self) -> dict[str, list[TracedStep]]:
        self.looks += 1
        if self.looks > 1:
            self.steps.append(TracedStep(len(self.steps), time.monotonic(), {}))
        return {"trainer": self.steps}

    async def saves(self) -> int | None:
        self.looks += 1
        return self.looks // 30

    def sent_bytes(self) -> int | None:
        return None

    async def kept_bytes(self) -> dict[str, int]:
        return {}

    async def check(self) -> None:
        return None


async def test_on_a_slow_machine_a_window_lasts_until_it_has_steps_and_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_POLL_S", 0.001)
    async with measuring.open_gauge(os.environ, tmp_path / "gauge.log") as gauge:
        found = await measuring.measure(Slow(), tmp_path, 0, gauge, batch_size=10)
    assert found.saves == 1
    assert 0 < found.p50_ms <= found.p99_ms
    assert found.samples_per_s > 0


async def test_a_contender_that_stays_too_slow_fails_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_PATIENCE_S", 0.0)
    async with measuring.open_gauge(os.environ, tmp_path / "gauge.log") as gauge:
        with pytest.raises(TrialError, match="slow did not do 21 steps within 0 s"):
            await measuring.measure(Slow(), tmp_path, 0, gauge, batch_size=10)


def test_windows_are_compared_repeat_by_repeat() -> None:
    """The second repeat met a machine of half the speed: the ratio does not."""
    single, ours = [window(100.0), window(50.0), window(98.0)], [window(90.0), window(45.0), window(49.0)]
    summary = summarise(ours, single)
    assert summary.ratio == pytest.approx(0.9)
    assert summary.samples_per_s == 49.0


def test_json_has_the_figures_of_each_contender() -> None:
    found = result({"precision": "fp32"}, {"single": [window(100.0)], "cprjob": [window(97.0, rss=3 * 2**20)]}).document
    assert found["precision"] == "fp32"
    assert found["ratio_to_single"] == {"cprjob": 0.97}
    ours = found["contenders"]["cprjob"]
    assert (ours["samples_per_s"], ours["step_p50_ms"], ours["step_p99_ms"], ours["rss_mib"]) == (97.0, 4.0, 9.0, 3.0)
    assert json.loads(json.dumps(found))["windows"]["single"][0]["machine"]["gauge_gflops"] == 100.0


# --- contenders


def test_the_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    whole = TracedStep(1, 2.5, {"compute": 0.25})
    (tmp_path / "trace").write_text(whole.to_line() + '{"step": 2, "ended')
    assert read_trace(tmp_path / "trace") == [whole]
    assert read_trace(tmp_path / "none") == read_trace(None) == []


def test_any_program_can_take_part(tmp_path: Path) -> None:
    """It reads the job, writes a line for each step, and is stopped."""
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, os, time\n"
        "job = json.loads(os.environ['CPR_SPEC'])\n"
        "with open(os.environ['CPR_STEP_TRACE'], 'a') as trace:\n"
        "    trace.write(json.dumps({'step': job['shards'], 'ended_s': 1.5, 'stages_s': {}}) + '\\n')\n"
        "time.sleep(600)\n"
    )

    async def take_part() -> list[TracedStep]:
        async with Program("peer", (sys.executable, str(script)), spec(), {}).started(tmp_path) as run:
            while not run.traces()["peer"]:
                await run.check()
                await asyncio.sleep(0.01)
            assert await run.saves() is None
            assert usage()["peer"].rss_bytes > 2**20
            return run.traces()["peer"]

    assert asyncio.run(take_part()) == [TracedStep(2, 1.5, {})]


def test_peers_are_commands_by_name() -> None:
    found = peer_commands(("a=sh -c 'exit 1'", f"b={sys.executable} x=y"))
    assert Path(found["a"][0]).is_absolute()
    assert found["a"][1:] == ("-c", "exit 1")
    assert found["b"] == (sys.executable, "x=y")


@pytest.mark.parametrize(
    ("peers", "why"),
    [
        (("sh",), "NAME=COMMAND"),
        (("=sh",), "NAME=COMMAND"),
        (("a= ",), "NAME=COMMAND"),
        (("a=sh 'x",), "No closing quotation"),
        (("single=sh",), "the name single is already in use"),
        (("single-2=sh",), "the name single-2 is already in use"),
        (("a=sh", "a=sh"), "the name a is already in use"),
        (("a=no-such-program -x",), "the program no-such-program was not found"),
    ],
)
def test_a_peer_that_cannot_run_is_refused(peers: tuple[str, ...], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        peer_commands(peers)


def test_a_program_that_ends_says_why(tmp_path: Path) -> None:
    async def take_part() -> None:
        program = Program("peer", (sys.executable, "-c", "import sys; sys.exit('no such model')"), spec(), {})
        async with program.started(tmp_path) as run:
            while True:
                await run.check()
                await asyncio.sleep(0.01)

    with pytest.raises(TrialError, match="no such model"):
        asyncio.run(take_part())


def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, *options: str) -> tuple[int, str]:
    """What the command ends with on a processor with these flags; it goes as far as its samples."""

    def write_samples(*_: object) -> None:
        raise TrialError("samples are written")

    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(train, "write_samples", write_samples)
    result = CliRunner().invoke(app, ["bench", "train", *options])
    return result.exit_code, result.output


def test_a_precision_that_this_processor_emulates_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = bench(tmp_path, monkeypatch, "fpu avx512f", "--precision", "bf16")
    assert code == 2
    for words in ("--precision bf16: this processor has no instructions for it", "AVX512-BF16", "fp32"):
        assert words in said


@pytest.mark.parametrize(("flags", "precision"), [("fpu avx512_bf16", "bf16"), ("fpu avx512f", "fp32")])
def test_a_precision_that_this_processor_has_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, precision: str
) -> None:
    code, said = bench(tmp_path, monkeypatch, flags, "--precision", precision)
    assert (code, "samples are written" in said) == (1, True)


def test_figures_of_the_machine_only_grow() -> None:
    before, (all_s, stolen_s) = usage()["cprjob"], processor_s()
    sum(range(3_000_000))
    after, (all_end_s, stolen_end_s) = usage()["cprjob"], processor_s()
    assert after.cpu_s >= before.cpu_s > 0
    assert after.rss_bytes > 2**20
    assert all_end_s >= all_s
    assert stolen_end_s >= stolen_s >= 0
    assert to_json(spec())
