"""Retention: what no restore needs any more goes after each anchor, and a sweep that fails is repeated and told."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Iterable, Iterator
from time import monotonic

from cpr_contract.exits import Problem
from cpr_contract.manifests import ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.pruning import Pruner
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.runtime import backoff, problem_of
from cpr_trainer.store import StoreError

_LOG = logging.getLogger(__name__)

#: Between two sweeps that fail: each may list everything that the job has.
_FIRST_S, _LONGEST_S = 1.0, 60.0


class Retention:
    """Sweeps by `pruner`. `problem` is why the last sweep failed, None once one has succeeded. For one thread."""

    def __init__(self, pruner: Pruner, rng: random.Random) -> None:
        self.problem: Problem | None = None
        self._pruner = pruner
        self._rng = rng
        self._keep: tuple[AnchorRef, ...] = ()
        self._spared: Collection[int] = ()
        self._next_s = 0.0
        self._delays = self._fresh_delays()

    def keep(
        self, anchors: tuple[AnchorRef, ...], shards: Iterable[ShardManifest], spared: Collection[int] = ()
    ) -> None:
        """Ask for a sweep that leaves these anchors, oldest first; the last one is of the saves `shards`.

        spared: steps whose saves stay as well.
        """
        self._keep, self._spared = anchors, spared
        self._pruner.note(anchors[-1], shards)

    def turn(self) -> None:
        """Sweep if that was asked for, and the last attempt is not too recent."""
        if not self._keep or (self.problem is not None and monotonic() < self._next_s):
            return
        try:
            self._pruner.prune(self._keep, self._spared)
        except (StoreError, DamagedError) as error:
            if self.problem is None:
                _LOG.warning("old saves are not deleted: %s", error)
            self.problem = problem_of(error)
            self._next_s = monotonic() + next(self._delays)
        else:
            self.problem, self._keep, self._delays = None, (), self._fresh_delays()

    def _fresh_delays(self) -> Iterator[float]:
        return backoff(self._rng, first_s=_FIRST_S, cap_s=_LONGEST_S)
