"""Averaging of dense parameters: EASGD, MA and BMUF as ShadowSync runs them in the background.

Q. Zheng et al., "ShadowSync", arXiv 2003.03477. With all three a trainer blends its parameters towards a target t,
`w_i <- (1 - a) w_i + a t`, because its worker trained on while the copy was under way. The methods differ in how they
combine copies into t. Vectors are float32 [p], flat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cpr_contract.choices import DenseSync

#: `a` of the papers' equations, for every blend.
WEIGHT = 0.5
#: BMUF's block momentum. Its block learning rate is 1 - momentum, so that a steady drift of the mean is followed at
#: full speed.
MOMENTUM = 0.5


class Combiner(Protocol):
    """Combines copies into the target of their senders. `together`: the copies of all trainers make one round."""

    together: bool

    def combine(self, copies: Sequence[Tensor]) -> Tensor:
        """Return the target of a round, a new tensor. At least one copy; exactly one unless `together`."""


def combiner_of(kind: DenseSync, first: Tensor) -> Combiner:
    """Return the combiner of a mode, initialised with the parameters `first`. Raises ValueError for lockstep."""
    match kind:
        case "ShadowEASGD":
            return Elastic(first)
        case "ShadowMA":
            return Mean()
        case "ShadowBMUF":
            return Filter(first)
        case "AllReduce":
            raise ValueError("lockstep averages no copies")


def blend(own: Tensor, target: Tensor, weight: float = WEIGHT) -> None:
    """Change `own` in place: w <- (1 - a) w + a t."""
    own.lerp_(target, weight)


def mean(copies: Sequence[Tensor]) -> Tensor:
    """Return the mean of copies, a new tensor: AllReduce(w_i) / W."""
    return torch.stack(tuple(copies)).mean(dim=0)


class Elastic:
    """EASGD: w_ps <- (1 - a) w_ps + a w_i, one trainer at a time; the target is the new w_ps."""

    together = False

    def __init__(self, first: Tensor) -> None:
        self._centre = first.clone()

    def combine(self, copies: Sequence[Tensor]) -> Tensor:
        (copy,) = copies
        blend(self._centre, copy)
        return self._centre.clone()


class Mean:
    """MA: the target is the mean of all copies."""

    together = True

    def combine(self, copies: Sequence[Tensor]) -> Tensor:
        return mean(copies)


class Filter:
    """BMUF: d = m - w_glob; v <- momentum v + eta d; w_glob <- w_glob + v, with m the mean; the target is w_glob.

    The momentum is that of K. Chen and Q. Huo (ICASSP 2016, "Scalable training of deep learning machines by incremental
    block training"), where d is the block's model update.
    """

    together = True

    def __init__(self, first: Tensor, momentum: float = MOMENTUM) -> None:
        self._global = first.clone()
        self._velocity = torch.zeros_like(first)
        self._momentum = momentum

    def combine(self, copies: Sequence[Tensor]) -> Tensor:
        update = mean(copies).sub_(self._global)
        self._velocity.mul_(self._momentum).add_(update, alpha=1 - self._momentum)
        self._global += self._velocity
        return self._global.clone()
