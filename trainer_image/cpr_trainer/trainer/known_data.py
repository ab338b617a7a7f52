"""The data of a group: all trainers read the same pins before they train, and at each known end."""

from __future__ import annotations

from functools import partial

from cpr_contract.pinned_data import PinnedData
from cpr_trainer.checkpoint.anchor.committer import AnchorCommitter
from cpr_trainer.data.reader import TableDataset
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.control import PollInterrupts
from cpr_trainer.trainer.followed_data import DataLooks, LookThread
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.status import StatusPublisher
from cpr_trainer.trainer.store_retry import retry_store_errors


class KnownData:
    """This trainer's knowledge of the data of a job that follows it. `poll_interrupts` is for waits."""

    def __init__(
        self, setup: Setup, exchange: Exchange, status: StatusPublisher, poll_interrupts: PollInterrupts
    ) -> None:
        assert setup.followed is not None, "there are pins"
        self._followed = setup.followed
        self._setup = setup
        self._exchange = exchange
        self._status = status
        self._poll_interrupts = poll_interrupts
        self._pinned = self._followed.pinned
        self._looks: LookThread | None = None
        self._committer: AnchorCommitter | None = None

    @property
    def pinned(self) -> PinnedData | None:
        """The pinned data for a report: on the leader that of the last look. Any thread may read it."""
        looks = self._looks
        return self._pinned if looks is None or looks.pinned is None else looks.pinned

    def look(self, committer: AnchorCommitter) -> None:
        """On the leader: look for new files from now on. Pins name the segments that anchors of `committer` need."""
        self._committer = committer
        if self._looks is None:
            setup = self._setup
            self._looks = LookThread(DataLooks.of(setup.job, setup.store, setup.files, self._oldest_samples))
            self._looks.start()

    def close(self) -> None:
        """Look for files no more."""
        if self._looks is not None:
            self._looks.close()
            self._looks = None

    def on_group_formed(self, group: Group) -> None:
        """Read the pins up to the one that the leader names, once per group. Raises what ends a wait, GroupBroken.

        Before a group forms, any of its members may have read a later pin than others. The leader reads after that.
        """
        if self._looks is not None:
            self._looks.waits_at = 0  # after a rollback the group repeats steps of the newest pin
            self._read(None)
            group.name_pin(self._followed.number)
        with self._status.waiting(self._poll_interrupts) as poll_and_report:
            while not group.pin:
                group.listen(poll_and_report)
        self._read(group.pin)

    def grows(self, group: Group, *, is_saved: bool) -> bool:
        """At the last step that can be trained: read the pins that the leader names, and return whether there are any.

        is_saved: on the leader, the anchor of this step is committed, or no step is trained. Raises the error of a
        look, what ends a wait, and GroupBroken.
        """
        if is_saved and self._looks is not None:
            self._looks.check()
            if self._looks.newest > self._followed.number:
                group.name_pin(self._looks.newest)
            else:
                self._looks.waits_at = self._followed.number
        if group.pin <= self._followed.number:
            return False
        self._read(group.pin)
        return True

    def _oldest_samples(self) -> int:
        return 0 if self._committer is None else self._setup.samples_at(self._committer.oldest_step)

    def _read(self, up_to: int | None) -> None:
        """Read the pins up to that number, or all; add their files to the data, and drop those not needed any more."""
        files = retry_store_errors(partial(self._followed.read, up_to), self._status, self._poll_interrupts)
        order, dataset = self._followed.order, self._setup.dataset
        assert isinstance(dataset, TableDataset), "files have tables"
        dataset.replace_files(order.segments[0].first_block, files)
        self._pinned = self._followed.pinned
        self._status.update(total_samples=order.known_samples)
        if order.has_ended:
            self._exchange.end_data(order.total_samples)
