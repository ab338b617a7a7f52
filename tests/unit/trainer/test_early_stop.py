"""When a job ends early, from what its evaluations scored."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import EarlyStopSpec, StopMetric, samples_at
from cpr_trainer.errors import DataError
from cpr_trainer.trainer.scores import EarlyStopState, next_evaluation

AUC = EarlyStopSpec("AUC", 2)


def scores(*aucs: float) -> list[HeldOutScores]:
    """One evaluation after each ten steps."""
    return [HeldOutScores(10 * n, 1000 * n, 50, auc, 0.5, 0.9, 1.0) for n, auc in enumerate(aucs, 1)]


def judged(found: list[HeldOutScores], spec: EarlyStopSpec = AUC) -> EarlyStopState:
    return reduce(lambda early_stop_state, each: early_stop_state.after(each, spec), found, EarlyStopState())


def test_patience_counts_evaluations_since_the_best() -> None:
    assert judged(scores(0.7, 0.8, 0.75)) == EarlyStopState(30, 0.8, 20, 1)
    assert not judged(scores(0.7, 0.8, 0.75)).should_stop(AUC)
    assert judged(scores(0.7, 0.8, 0.75, 0.79)) == EarlyStopState(40, 0.8, 20, 2)
    assert judged(scores(0.7, 0.8, 0.75, 0.79)).should_stop(AUC)
    assert judged(scores(0.7, 0.8, 0.75, 0.81)) == EarlyStopState(40, 0.81, 40, 0)
    assert not judged(scores(0.7, 0.8, 0.75, 0.79)).should_stop(None)


def test_small_improvement_is_none() -> None:
    spec = replace(AUC, min_improvement=0.05)
    assert judged(scores(0.7, 0.7)) == EarlyStopState(20, 0.7, 10, 1), "nor is an equal score"
    assert judged(scores(0.7, 0.74, 0.76), spec) == EarlyStopState(30, 0.76, 30, 0), (
        "by more than the best, not than the last"
    )
    assert judged(scores(0.7, 0.74, 0.74), spec) == EarlyStopState(30, 0.7, 10, 2)


@pytest.mark.parametrize("patience", [None, 2])
def test_target_ends_a_job_whose_model_reaches_it(patience: int | None) -> None:
    spec = EarlyStopSpec("AUC", patience, 0.05, target=0.8)
    assert not judged(scores(0.7, 0.77), spec).should_stop(spec)
    for last in (0.8, 0.81):
        reached = judged(scores(0.7, 0.79, last), spec)
        assert reached == EarlyStopState(30, last, 30, 0), "the result, however small its improvement is"
        assert reached.should_stop(spec)
    assert judged(scores(0.7, 0.6, 0.65), spec).should_stop(spec) is (patience == 2)


def test_target_of_a_loss_is_reached_from_above() -> None:
    spec = EarlyStopSpec("LogLoss", None, target=0.4)
    found = [replace(each, logloss=loss) for each, loss in zip(scores(0.5, 0.5), (0.41, 0.4), strict=True)]
    assert not judged(found[:1], spec).should_stop(spec)
    assert judged(found, spec).should_stop(spec)


@pytest.mark.parametrize("metric", ["LogLoss", "NormalisedEntropy"])
def test_lower_losses_are_better(metric: StopMetric) -> None:
    found = [
        replace(each, logloss=value, normalised_entropy=value)
        for each, value in zip(scores(0.7, 0.6), (0.9, 0.8), strict=True)
    ]
    assert judged(found, EarlyStopSpec(metric, 1)) == EarlyStopState(20, 0.8, 20, 0)


@pytest.mark.parametrize(
    ("metric", "scored", "why"),
    [
        ("AUC", 50, "cannot judge by AUC: the 50 held-out samples all have the same label"),
        ("NormalisedEntropy", 50, "cannot judge by NormalisedEntropy: the 50 held-out samples all have the same label"),
        ("GAUC", 50, "cannot judge by GAUC: none of the groups of the 50 held-out samples has both labels"),
        ("LogLoss", 0, "cannot judge by LogLoss: no held-out row is a sample"),
        ("AUC", 0, "cannot judge by AUC: no held-out row is a sample"),
        ("LogLoss", 7, "cannot judge by LogLoss: the 7 held-out samples all have the weight 0"),
    ],
)
def test_metric_that_labels_or_groups_leave_undefined_is_bad_data(metric: StopMetric, scored: int, why: str) -> None:
    undefined = HeldOutScores(10, 1000, scored, None, 0.5 if scored == 50 else None, None, None)
    with pytest.raises(DataError, match=why):
        EarlyStopState().after(undefined, EarlyStopSpec(metric, 2))
    known = EarlyStopState(10, 0.7, 10, 0)
    assert known.after(undefined, EarlyStopSpec(metric, 2)) == known, "an evaluation that counts already"


@given(st.lists(st.floats(0, 1), max_size=8), st.integers(0, 8), st.integers(1, 4))
def test_repeated_evaluations_change_nothing(aucs: list[float], again: int, patience: int) -> None:
    spec, found = replace(AUC, patience=patience), scores(*aucs)
    assert judged([*found, *found[:again]], spec) == judged(found, spec)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_early_stop_state_goes_into_a_tensor_and_back(aucs: list[float]) -> None:
    early_stop_state = judged(scores(*aucs))
    assert EarlyStopState.of(early_stop_state.tensor()) == early_stop_state
    assert EarlyStopState.of(early_stop_state.tensor() + torch.zeros(4, dtype=torch.float64)) == early_stop_state
    assert EarlyStopState.of(None) == EarlyStopState()


def test_other_tensor_is_no_early_stop_state() -> None:
    with pytest.raises(ValueError, match="an early-stop state is float64"):
        EarlyStopState.of(torch.zeros(3))


@given(every=st.integers(1, 300), batch=st.integers(1, 100), total=st.integers(1, 2000), step=st.integers(0, 60))
def test_evaluations_are_due_at_multiples_and_at_the_end(every: int, batch: int, total: int, step: int) -> None:
    last = -(-total // batch)
    due = [
        each
        for each in range(1, last + 1)
        if each == last or samples_at(each, batch, total) // every > samples_at(each - 1, batch, total) // every
    ]
    assert next_evaluation(step, every, batch, last) == next((each for each in due if each > step), last)
