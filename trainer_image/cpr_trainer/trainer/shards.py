"""Access to rows with retries: while shards are unavailable, the trainer is paused and does not fail."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import TypeVar

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.access import Rows
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.control import POLL_INTERVAL_S, ControlSignals, PollInterrupts
from cpr_trainer.trainer.prefetch import Vectors, as_array
from cpr_trainer.trainer.status import StatusPublisher

T = TypeVar("T")


class Shards:
    """Reads and changes rows. Methods wait without a limit but for `settle_soon`, and raise what ends a wait.

    `group`: if shards merge steps, waits depend on the other trainers, and end when it breaks.
    """

    def __init__(self, exchange: Exchange, control: ControlSignals, status: StatusPublisher) -> None:
        self.group: Group | None = None
        self._exchange = exchange
        self._control = control
        self._status = status

    def await_ready(self, step: int | None = None) -> None:
        """Wait until all shards serve this generation, but for those that `step` may skip."""
        if not self._exchange.unavailable(step):
            return
        with self._status.paused():
            while True:
                self._poll_all()
                try:
                    self._exchange.wait_ready(POLL_INTERVAL_S, step)
                except ShardsUnavailableError:
                    continue
                return

    def fetch(self, vectors: Vectors) -> Rows:
        """Return the vectors of a slice; request them again after a shard was unavailable."""
        while True:
            try:
                with self._status.waiting(self._poll_all) as poll_interrupts:
                    return vectors.take(
                        lambda lookup: _retry_timeouts(lambda: lookup.result(POLL_INTERVAL_S), poll_interrupts)
                    )
            except ShardsUnavailableError:
                self.await_ready(vectors.slice.step)
                vectors.request_all()

    def push(
        self, step: int, rows: UniqueRows, gradients: Rows, cut_step: int, keep: Callable[[Ints | None], None]
    ) -> None:
        """Hand over a step's push, which will reach every shard that the step does not skip.

        keep: see `Exchange.push`.
        """
        values = tuple(map(as_array, gradients)) if isinstance(gradients, tuple) else as_array(gradients)
        while True:
            try:
                # A request to stop does not end this wait: all trainers push a step that they have summed.
                with self._status.waiting(lambda: self._poll_group(self._control.poll_roster)) as poll_interrupts:
                    _retry_timeouts(
                        lambda: self._exchange.push(step, rows, values, cut_step, POLL_INTERVAL_S, keep),
                        poll_interrupts,
                    )
            except ShardsUnavailableError:
                self.await_ready(step)
            else:
                return

    def await_received(self, step: int) -> None:
        """Wait until every shard holds the push of `step`."""
        while True:
            try:
                # A request to stop does not end this wait: the other trainers may be inside the collective.
                with self._status.waiting(lambda: self._poll_group(self._control.poll_roster)) as poll_interrupts:
                    _retry_timeouts(lambda: self._exchange.wait_received(step, POLL_INTERVAL_S), poll_interrupts)
            except ShardsUnavailableError:
                self.await_ready(step)
            else:
                return

    def settle_soon(self) -> bool:
        """Wait one interval for acknowledgements; return whether all came. Does not pause.

        Follows rosters, which name the successors of shards. Raises what ends a wait but for Terminated.
        """
        self._control.poll_roster()
        try:
            self._exchange.settle(POLL_INTERVAL_S)
        except ShardsUnavailableError:  # raised at once
            sleep(POLL_INTERVAL_S)
        except TimeoutError:
            pass
        else:
            return True
        return False

    def _poll_all(self) -> None:
        self._poll_group(self._control.poll_interrupts)

    def _poll_group(self, poll_interrupts: PollInterrupts) -> None:
        poll_interrupts()
        if self.group is not None:
            self.group.check(poll_interrupts)


def _retry_timeouts(call: Callable[[], T], poll_interrupts: PollInterrupts) -> T:
    while True:
        try:
            return call()
        except TimeoutError:
            poll_interrupts()
