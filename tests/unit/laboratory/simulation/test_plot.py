from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from cprjob_bench.simulation.job import PAPER, exponential
from cprjob_bench.simulation.study import plot_scale, plot_study, study


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: object, **options: object) -> None:
        figures.append(figure)
        save(figure, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_a_study_is_drawn_without_what_has_no_measure(tmp_path: Path, drawn: list[Figure]) -> None:
    summaries = study(PAPER, exponential, 20, seed=1)
    plot_study(tmp_path / "study.png", summaries, PAPER.limit, "paper")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    costs, losses = drawn[0].axes
    names = [label.get_text() for label in costs.get_yticklabels()]
    assert names == ["full", "partial_naive", "cpr", "cpr_closed_loop", "replay", "parity", "replay_parity"]
    ends = dict.fromkeys(names, 0.0)
    for bars in costs.containers:
        for name, bar in zip(names, bars, strict=True):
            ends[name] += bar.get_width()
    full = summaries["full"].overhead
    assert full is not None
    assert ends["full"] == pytest.approx(100 * full.mean)
    assert PAPER.limit in [np.asarray(line.get_xdata())[0] for line in losses.lines]


def test_sizes_are_drawn_on_log_axes_as_far_as_they_end(tmp_path: Path, drawn: list[Figure]) -> None:
    sizes = {8: study(PAPER, exponential, 5, seed=1), 16: study(PAPER, exponential, 5, seed=2)}
    sizes[16]["none"] = replace(sizes[16]["none"], overhead=None)
    plot_scale(tmp_path / "scale.svg", sizes, "scale")
    assert (tmp_path / "scale.svg").exists()
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    points = {str(line.get_label()): len(np.asarray(line.get_xdata())) for line in axes.lines}
    assert points == {
        "none": 1,
        "full": 2,
        "partial_naive": 2,
        "cpr": 2,
        "cpr_closed_loop": 2,
        "replay": 2,
        "parity": 2,
        "replay_parity": 2,
    }
