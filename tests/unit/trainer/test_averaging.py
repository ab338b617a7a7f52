"""Each algorithm against a reference of one process, written out number by number from its paper's equations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from cpr_contract.choices import DenseSync
from cpr_trainer.trainer.async_sync.averaging import blend, combiner_of, mean

SIZE, TRAINERS, ROUNDS = 7, 3, 40
RATE = 0.1
#: Steps of a trainer between the copy that it sends and the blend, which it does not wait for.
BEHIND = 2

Vector = list[float]


def gradient(w: Sequence[float], trainer: int, step: int) -> Vector:
    """The gradient of a quadratic; its minimum depends on trainer and step."""
    aims = random.Random(1000 * trainer + step)
    return [wj - aims.uniform(-1, 3) for wj in w]


def descend(w: Vector, trainer: int, steps: range) -> Vector:
    for step in steps:
        w = [wj - RATE * gj for wj, gj in zip(w, gradient(w, trainer, step), strict=True)]
    return w


def first() -> Vector:
    return [0.3 * j - 1 for j in range(SIZE)]


def easgd(a: float = 0.5) -> list[Vector]:
    """ShadowSync's EASGD: trainers come one after another to the server of w_ps."""
    w, w_ps = [first() for _ in range(TRAINERS)], first()
    for step_round in range(ROUNDS):
        for i in range(TRAINERS):
            copy = list(w[i])
            w[i] = descend(w[i], i, range(step_round * BEHIND, (step_round + 1) * BEHIND))
            w_ps = [(1 - a) * p + a * c for p, c in zip(w_ps, copy, strict=True)]
            w[i] = [(1 - a) * x + a * p for x, p in zip(w[i], w_ps, strict=True)]
    return w


def model_averaging(a: float = 0.5) -> list[Vector]:
    w = [first() for _ in range(TRAINERS)]
    for step_round in range(ROUNDS):
        m = [sum(column) / TRAINERS for column in zip(*w, strict=True)]
        w = [descend(w[i], i, range(step_round * BEHIND, (step_round + 1) * BEHIND)) for i in range(TRAINERS)]
        w = [[(1 - a) * x + a * y for x, y in zip(each, m, strict=True)] for each in w]
    return w


def bmuf(a: float = 0.5, momentum: float = 0.5, eta: float = 0.5) -> list[Vector]:
    """ShadowSync's BMUF with the block momentum of Chen and Huo."""
    w, w_glob, v = [first() for _ in range(TRAINERS)], first(), [0.0] * SIZE
    for step_round in range(ROUNDS):
        m = [sum(column) / TRAINERS for column in zip(*w, strict=True)]
        v = [momentum * vj + eta * (mj - gj) for vj, mj, gj in zip(v, m, w_glob, strict=True)]
        w_glob = [gj + vj for gj, vj in zip(w_glob, v, strict=True)]
        w = [descend(w[i], i, range(step_round * BEHIND, (step_round + 1) * BEHIND)) for i in range(TRAINERS)]
        w = [[(1 - a) * x + a * g for x, g in zip(each, w_glob, strict=True)] for each in w]
    return w


def product(kind: DenseSync) -> list[Tensor]:
    """The same computation with the product's classes, in the order of a run."""
    w = [torch.tensor(first()) for _ in range(TRAINERS)]
    combiner = combiner_of(kind, w[0])

    def train(i: int, step_round: int) -> None:
        w[i] = torch.tensor(descend(w[i].tolist(), i, range(step_round * BEHIND, (step_round + 1) * BEHIND)))

    for step_round in range(ROUNDS):
        if combiner.together:
            target = combiner.combine([each.clone() for each in w])
            for i in range(TRAINERS):
                train(i, step_round)
                blend(w[i], target)
            continue
        for i in range(TRAINERS):
            copy = w[i].clone()
            train(i, step_round)
            blend(w[i], combiner.combine([copy]))
    return w


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("ShadowEASGD", easgd), ("ShadowMA", model_averaging), ("ShadowBMUF", bmuf)],
)
def test_averaging_mode_equals_its_reference(kind: DenseSync, reference: Callable[[], list[Vector]]) -> None:
    expected = torch.tensor(reference())
    torch.testing.assert_close(torch.stack(product(kind)), expected, rtol=1e-4, atol=1e-5)
    assert (expected.std(dim=0) > 1e-3).all(), "copies that never differ would show nothing"


def test_target_is_a_separate_tensor() -> None:
    combiner = combiner_of("ShadowEASGD", torch.zeros(2))
    one = combiner.combine([torch.ones(2)])
    combiner.combine([torch.ones(2)])
    assert one.tolist() == [0.5, 0.5]
    copy = torch.ones(2)
    mean([copy]).zero_()
    assert copy.tolist() == [1, 1]
