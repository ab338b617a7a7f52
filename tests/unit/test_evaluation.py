from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_trainer.errors import DivergedError
from cpr_trainer.evaluation import COUNTERS, ProgressiveValidation
from support.oracle import calibration_of, exact_auc, log_loss


def scored(logits: Tensor, labels: Tensor, total: int | None = None, first: int | None = None) -> ProgressiveValidation:
    """All samples are scored by default: they are at the end of a long enough stream."""
    total = total or 2 * len(logits) + 10
    score = ProgressiveValidation(total)
    score.add(logits, labels, total - len(logits) if first is None else first)
    score.merge(score.take_delta())
    return score


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(-6, 6), st.floats(0.3, 5), st.floats(0, 2), st.integers(200, 5000))
def test_scores_are_those_of_the_logits(seed: int, mean: float, spread: float, gain: float, n: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(mean, spread, n).astype(np.float32)
    labels = (random.random(n) < 1 / (1 + np.exp(-gain * (logits - mean)))).astype(np.float32)
    labels[:2] = 0, 1
    score = scored(torch.from_numpy(logits), torch.from_numpy(labels))
    assert score.auc() == pytest.approx(exact_auc(logits.astype(np.float64), labels), abs=1e-3)
    exact = binary_cross_entropy_with_logits(torch.from_numpy(logits).double(), torch.from_numpy(labels).double())
    assert score.log_loss() == pytest.approx(exact.item(), abs=1e-7)
    predicted = torch.from_numpy(logits).double().sigmoid().sum().item()
    assert score.calibration() == pytest.approx(predicted / labels.sum(), rel=1e-3)
    portion = labels.mean(dtype=np.float64)
    entropy = -(portion * math.log(portion) + (1 - portion) * math.log(1 - portion))
    assert score.normalised_entropy() == pytest.approx(score.log_loss() / entropy, rel=1e-9)
    assert score.samples == n


PERFECT = [-9e3, -20.0, -1.0, 1.0, 20.0, 9e3]


@pytest.mark.parametrize(
    ("logits", "labels", "auc", "log_loss", "calibration"),
    [
        pytest.param([], [], None, None, None, id="nothing-scored"),
        pytest.param([0.0] * 5, [0] * 5, None, math.log(2), None, id="only-negatives"),
        pytest.param([0.0] * 5, [1] * 5, None, math.log(2), 0.5, id="only-positives"),
        pytest.param([0.0] * 10, [0, 1] * 5, 0.5, math.log(2), 1.0, id="ties"),
        pytest.param(PERFECT, [0, 0, 0, 1, 1, 1], 1.0, None, 1.0, id="perfect-order"),
        pytest.param(PERFECT, [1, 1, 1, 0, 0, 0], 0.0, None, 1.0, id="reversed-order"),
    ],
)
def test_scores_of_few_samples(
    logits: list[float], labels: list[int], auc: float | None, log_loss: float | None, calibration: float | None
) -> None:
    score = scored(torch.tensor(logits), torch.tensor(labels).float()) if logits else ProgressiveValidation(10)
    assert score.auc() == auc
    if log_loss or not logits:
        assert score.log_loss() == (log_loss and pytest.approx(log_loss))
    assert score.calibration() == (calibration and pytest.approx(calibration, rel=1e-3))
    assert (score.normalised_entropy() is None) == (auc is None)


@settings(deadline=None)
@given(st.integers(1, 300), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_the_first_fifth_is_left_out_to_the_sample(total: int, sizes: list[int]) -> None:
    score, start = ProgressiveValidation(total), 0
    for size in sizes:
        part = min(size, total - start)
        # The label marks a sample that is left out.
        score.add(torch.zeros(part), (torch.arange(start, start + part) < total // 5).float(), start)
        start += part
    delta = score.take_delta()
    negatives, positives = delta[: COUNTERS - 1].view(2, -1).sum(dim=1).tolist()
    assert (negatives, positives) == (max(0, start - total // 5), 0)
    assert delta[-1].item() == negatives
    assert delta[COUNTERS - 1].item() == pytest.approx(negatives * math.log(2) * 2**24, abs=len(sizes))


def test_parts_merge_in_any_order_to_the_same_bits() -> None:
    logits = torch.randn(999, generator=torch.Generator().manual_seed(1))
    labels = (torch.arange(999) % 3 == 0).float()
    parts = [scored(logits[k::3], labels[k::3]).state() for k in range(3)]
    one, other = ProgressiveValidation(10), ProgressiveValidation(10)
    one.merge(parts[0] + parts[1])
    one.merge(parts[2])
    other.merge(parts[2] + parts[0] + parts[1])
    assert torch.equal(one.state(), other.state())
    assert one.auc() == scored(logits, labels).auc()
    assert one.log_loss() == pytest.approx(scored(logits, labels).log_loss(), abs=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_since_a_state_are_those_of_the_later_samples_alone(*, weighted: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(900, generator=generator), (torch.rand(900, generator=generator) < 0.3).float()
    weights = torch.rand(900, generator=generator) * 1e6 if weighted else None
    whole, alone = ProgressiveValidation(0, weighted=weighted), ProgressiveValidation(0, weighted=weighted)
    states = [whole.state()]
    for score, parts in ((whole, range(9)), (alone, range(4, 9))):
        for part in parts:
            at = slice(100 * part, 100 * part + 100)
            score.add(logits[at], labels[at], at.start, None if weights is None else weights[at])
            score.merge(score.take_delta())
            states.append(score.state())
    later = whole.since(states[4])
    assert torch.equal(later.state(), alone.state())
    values = [(each.samples, each.auc(), each.log_loss(), each.calibration()) for each in (later, alone)]
    assert values[0] == values[1]
    assert torch.equal(whole.state(), states[9]), "the scores of all samples stay"


def test_a_delta_is_taken_once_and_counts_when_merged() -> None:
    score = ProgressiveValidation(0)
    score.add(torch.zeros(4), torch.ones(4), 0)
    assert score.samples == 0
    delta = score.take_delta()
    assert (delta.dtype, delta.shape) == (torch.int64, (COUNTERS + 1,))
    assert not score.take_delta().any()
    score.merge(delta)
    assert score.samples == 4


def test_score_returns_to_an_earlier_state() -> None:
    score = scored(torch.randn(50), (torch.arange(50) % 2).float())
    state, auc, log_loss = score.state(), score.auc(), score.log_loss()
    score.merge(state)
    score.add(torch.zeros(4), torch.ones(4), 100)
    score.load_state(state)
    assert (score.auc(), score.log_loss(), score.samples) == (auc, log_loss, 50)
    assert not score.take_delta().any(), "what was counted before a rollback is forgotten"
    for wrong in (state[1:], state.double()):
        with pytest.raises(ValueError, match="evaluation state"):
            score.load_state(wrong)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("first_sample", [0, 90])
def test_diverged_model_is_reported(value: float, first_sample: int) -> None:
    with pytest.raises(DivergedError) as caught:
        ProgressiveValidation(100).add(torch.tensor([0.0, value]), torch.zeros(2), first_sample)
    assert caught.value.reason == "Diverged"


def weighted(logits: Tensor, labels: Tensor, weights: Tensor, trainers: int = 1) -> ProgressiveValidation:
    """All samples are scored; each of several trainers counts a part of them, in two slices."""
    merged = ProgressiveValidation(0, weighted=True)
    for part in range(trainers):
        one = ProgressiveValidation(0, weighted=True)
        mine = torch.arange(part, len(logits), trainers)
        for few in mine.split(len(mine) // 2 + 1):
            one.add(logits[few], labels[few], 0, weights[few])
        merged.merge(one.take_delta())
    return merged


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 300), st.integers(1, 3))
def test_weights_score_as_repeated_samples_do(seed: int, n: int, trainers: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(n, generator=random), torch.rand(n, generator=random).round()
    times = torch.randint(0, 4, (n,), generator=random)
    found = weighted(logits, labels, times.float(), trainers)
    expected = scored(logits.repeat_interleave(times), labels.repeat_interleave(times), total=10 * n, first=2 * n)
    assert found.samples == n
    for name in ("auc", "log_loss", "normalised_entropy", "calibration"):
        value = getattr(expected, name)()
        assert getattr(found, name)() == (value and pytest.approx(value, rel=1e-6)), name
    # The loss of a slice is rounded as a whole; weights are counted one by one.
    other = weighted(logits, labels, times.float(), trainers=3)
    assert (found.auc(), found.calibration()) == (other.auc(), other.calibration())


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e6])
def test_scale_of_weights_changes_no_score(scale: float) -> None:
    random = torch.Generator().manual_seed(2)
    logits, labels = torch.randn(999, generator=random), torch.rand(999, generator=random).round()
    weights = torch.rand(999, generator=random, dtype=torch.float64)
    found = weighted(logits, labels, (scale * weights).float())
    exact = [each.double().numpy() for each in (logits, labels, weights)]
    assert found.auc() == pytest.approx(exact_auc(*exact), abs=1e-3)
    assert found.log_loss() == pytest.approx(log_loss(*exact), rel=1e-3)
    assert found.calibration() == pytest.approx(calibration_of(*exact), rel=1e-3)


def test_samples_without_weight_leave_scores_undefined() -> None:
    none = weighted(torch.randn(9), (torch.arange(9) % 2).float(), torch.zeros(9))
    assert (none.samples, none.auc(), none.log_loss(), none.normalised_entropy(), none.calibration()) == (
        9,
        *4 * [None],
    )


class Errors:
    """Own metrics from sums: the error of a number that is predicted, and a ratio that is not always defined."""

    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        errors = (logits[:, -1] - labels[:, -1]).square().sum()
        return torch.stack((errors, torch.tensor(float(len(labels))), labels[:, 0].sum()))

    def metrics(self, sums: Tensor) -> dict[str, float]:
        errors, samples, clicks = sums.tolist()
        return {"error": math.sqrt(errors / samples), "never": math.nan, "samples": samples, "rate": clicks / samples}


class Ratio(Errors):
    def metrics(self, sums: Tensor) -> dict[str, float]:
        errors, _, clicks = sums.tolist()
        return {"errors a click": errors / clicks}


def visits(count: int = 300) -> tuple[Tensor, Tensor]:
    """Logits and labels of a click, a purchase, and seconds."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(count, 3, generator=generator) * torch.tensor([1.0, 2.0, 5e4])
    labels = torch.cat((torch.rand(count, 2, generator=generator).round(), logits[:, 2:] + 3), dim=1)
    return logits, labels


def test_each_label_is_scored_as_if_it_were_alone() -> None:
    logits, labels = visits()
    score = ProgressiveValidation(100, ("click", "buy"))
    for first in range(0, 300, 60):
        score.add(logits[first : first + 60], labels[first : first + 60], first)
    score.merge(score.take_delta())
    alone = [scored(logits[20:, place], labels[20:, place]) for place in range(2)]
    assert [score.auc(place) for place in range(2)] == [each.auc() for each in alone]
    assert [score.log_loss(place) for place in range(2)] == pytest.approx([each.log_loss() for each in alone])
    assert dict(score.metrics()) == {
        "click.auc": score.auc(),
        "click.logloss": score.log_loss(),
        "click.calibration": score.calibration(),
        "buy.auc": score.auc(1),
        "buy.logloss": score.log_loss(1),
        "buy.calibration": score.calibration(1),
    }
    assert score.samples == 280


def test_own_sums_of_all_trainers_give_the_metrics() -> None:
    logits, labels = visits()
    one, other = (ProgressiveValidation(100, ("click",), Errors(), 3) for _ in range(2))
    one.add(logits[:100, ::2], labels[:100, ::2], 0)
    other.add(logits[100:250, ::2], labels[100:250, ::2], 100)
    one.merge(one.take_delta() + other.take_delta())
    found = dict(one.metrics())
    assert found.keys() == {"calibration", "error", "samples", "rate"}, "what is not a number is left out"
    assert found["samples"] == 230, "the first fifth is left out"
    assert found["error"] == pytest.approx(3, rel=1e-3)
    assert found["rate"] == pytest.approx(labels[20:250, 0].mean().item())
    resumed = ProgressiveValidation(100, ("click",), Errors(), 3)
    resumed.load_state(one.state())
    assert dict(resumed.metrics()) == found


def test_a_number_that_is_predicted_alone_has_only_its_own_metrics() -> None:
    score = ProgressiveValidation(0, (), Errors(), 3)
    assert score.metrics() == ()
    logits, labels = visits()
    score.add(logits[:, 2:], labels[:, 2:], 0)
    score.merge(score.take_delta())
    assert (score.auc(), score.log_loss(), score.samples) == (None, None, 300)
    assert dict(score.metrics())["error"] == pytest.approx(3, rel=1e-3)
    with pytest.raises(DivergedError):
        score.add(torch.full((2, 1), math.nan), torch.zeros(2, 1), 0)


@pytest.mark.parametrize("size", [-1e9, -1e-4, 1e-4, 1e9])
def test_own_sums_may_be_large_or_small_or_negative(size: float) -> None:
    class Sum(Errors):
        def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
            return labels[:, 1].sum(dim=0, keepdim=True)

        def metrics(self, sums: Tensor) -> dict[str, float]:
            return {"sum": float(sums[0])}

    score, total = ProgressiveValidation(0, ("click",), Sum(), 1), 0.0
    for count in range(100):
        score.add(torch.zeros(1, 2), torch.tensor([[0.0, size * count]]), 0)
        total += float(torch.tensor(size * count))
    score.merge(score.take_delta())
    assert dict(score.metrics())["sum"] == pytest.approx(total, rel=1e-5)


def test_a_metric_that_is_not_defined_yet_is_left_out() -> None:
    score = ProgressiveValidation(0, ("click",), Ratio(), 3)
    score.add(torch.zeros(4, 2), torch.zeros(4, 2), 0)
    score.merge(score.take_delta())
    assert score.metrics() == ()


@pytest.mark.parametrize("value", [1e8, math.nan])
def test_diverged_metric_sums_are_reported(value: float) -> None:
    score = ProgressiveValidation(0, ("click",), Errors(), 3)
    labels = torch.tensor([[0.0, value]])
    with pytest.raises(DivergedError, match="metric_sums"):
        score.add(torch.zeros(1, 2), labels, 0)
