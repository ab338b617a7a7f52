import pytest
import torch

from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.trainer.scores import ScoredSlice, Scores

_TOTAL = 100


def _scores() -> Scores:
    return Scores(ProgressiveValidation(_TOTAL))


def _slice(step: int, *, trainers: int = 1, first_sample: int = 20) -> ScoredSlice:
    logits, labels = torch.tensor([-1.0, 2.0]), torch.tensor([0.0, 1.0])
    return ScoredSlice(step, trainers, first_sample, logits, labels, loss_share=0.5)


def test_two_trainers_merge_to_the_same_scores() -> None:
    trainers = _scores(), _scores()
    for scores in trainers:
        scores.add(_slice(1, trainers=2))
        scores.add(_slice(2, trainers=2))
    counters, losses = (sum(parts) for parts in zip(*(scores.to_merge() for scores in trainers), strict=True))
    for scores in trainers:
        scores.merge(counters, losses)

    assert [scores.validation.samples for scores in trainers] == [8, 8]
    assert [scores.loss for scores in trainers] == [pytest.approx(1.0)] * 2, "shares of a step's loss add up"
    assert torch.equal(trainers[0].merged(), trainers[1].merged())


def test_step_that_is_computed_again_is_scored_once() -> None:
    scores = _scores()
    scores.add(_slice(1))
    scores.to_merge()  # the all-reduce that follows fails
    scores.add(_slice(1))
    scores.merge(*scores.to_merge())

    assert scores.validation.samples == 2
    assert scores.loss == pytest.approx(0.5)


def test_copied_scores_replace_unmerged_ones() -> None:
    merged, loaded = _scores(), _scores()
    for scores in (merged, loaded):
        scores.add(_slice(1))
    merged.merge(*merged.to_merge())
    loaded.load(merged.merged())
    loaded.merge(*loaded.to_merge())

    assert loaded.validation.samples == 2
