"""The exchange with patience: while shards are away the trainer is paused, not failed."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.access import Rows
from cpr_trainer.embedding.placement import UniqueRows
from cpr_trainer.exchange import Exchange, PendingLookup, ShardsUnavailableError
from cpr_trainer.exchange.encoding import Values
from cpr_trainer.trainer.control import POLL_INTERVAL_S, ControlSignals, PollInterrupts
from cpr_trainer.trainer.prefetch import Vectors, as_array
from cpr_trainer.trainer.status import StatusPublisher

T = TypeVar("T")


class Shards:
    """Reads and changes rows. Every method waits as long as it takes and raises what ends a wait."""

    def __init__(self, exchange: Exchange, control: ControlSignals, status: StatusPublisher) -> None:
        self._exchange = exchange
        self._control = control
        self._status = status

    def await_ready(self, step: int | None = None) -> None:
        """Wait until all shards serve this generation, but for those that `step` can spare."""
        if not self._exchange.unavailable(step):
            return
        with self._status.paused():
            while True:
                self._control.poll_interrupts()
                try:
                    self._exchange.wait_ready(POLL_INTERVAL_S, step)
                except ShardsUnavailableError:
                    continue
                return

    def fetch(self, vectors: Vectors) -> Rows:
        """Return the vectors of a slice; asked for again after a shard was away."""
        while True:
            try:
                with self._status.waiting(self._control.poll_interrupts) as poll_interrupts:
                    return vectors.take(lambda lookup: _result(lookup, poll_interrupts))
            except ShardsUnavailableError:
                self.await_ready(vectors.slice.step)
                vectors.request_all()

    def push(
        self, step: int, rows: UniqueRows, gradients: Rows, cut_step: int, keep: Callable[[Ints | None], None]
    ) -> None:
        """Hand over a step's push; it reaches every shard that the step does not spare, whatever happens.

        keep: see `Exchange.push`.
        """
        values = tuple(map(as_array, gradients)) if isinstance(gradients, tuple) else as_array(gradients)
        self._retry(lambda: self._exchange.push(step, rows, values, cut_step, POLL_INTERVAL_S, keep), step)

    def settle(self) -> None:
        """Wait until all pushes are acknowledged."""
        self._retry(lambda: self._exchange.settle(POLL_INTERVAL_S))

    def settle_within(self, pause_after_s: float) -> bool:
        """Wait a little for acknowledgements; return whether all came. Never pauses.

        Follows rosters meanwhile: they name the successors of shards. Raises what ends a wait, but not because this
        process is to stop.
        """
        end = monotonic() + pause_after_s
        while monotonic() < end:
            self._control.poll_roster()
            try:
                self._exchange.settle(POLL_INTERVAL_S)
            except (ShardsUnavailableError, TimeoutError):
                continue
            return True
        return False

    def _retry(self, call: Callable[[], None], step: int | None = None) -> None:
        """Call until it succeeds, waiting for shards that are slow or away.

        To stop is no reason not to wait for slow ones: what all trainers have summed is to be pushed by all.
        """
        while True:
            try:
                with self._status.waiting(self._control.poll_roster) as poll_interrupts:
                    _retry_timeouts(call, poll_interrupts)
            except ShardsUnavailableError:
                self.await_ready(step)
            else:
                return


def _result(lookup: PendingLookup, poll_interrupts: PollInterrupts) -> Values:
    return _retry_timeouts(lambda: lookup.result(POLL_INTERVAL_S), poll_interrupts)


def _retry_timeouts(call: Callable[[], T], poll_interrupts: PollInterrupts) -> T:
    while True:
        try:
            return call()
        except TimeoutError:
            poll_interrupts()
