"""What one trainer says about itself in every frame."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.roster import Counters, Peer
from cpr_contract.spec import steps_in
from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.frames import Header, Operation
from cpr_trainer.exchange.handshake import Identity

_NO_ROSTER = Counters(roster=0, group=0, generation=0)


@dataclass(slots=True)
class Session:
    """A trainer and where it stands. The last three change: they are guarded by the exchange's lock."""

    job_uid: str
    rank: int
    incarnation: int
    key: bytes
    encoding: Encoding
    total_samples: int
    silence_s: float
    batch_size: int
    counters: Counters = _NO_ROSTER
    cut_step: int = 0
    newest_roster_seen: int = 0

    def last_step(self, samples: int) -> int:
        """Return the last step that ends by this sample; the last of all where that is the end."""
        if samples >= self.total_samples:
            return steps_in(self.total_samples, self.batch_size)
        return samples // self.batch_size

    def header(
        self, operation: Operation, step: int = 0, ticket: int = 0, count: int = 0, size_bytes: int = 0
    ) -> Header:
        """Return the header of a frame of this trainer."""
        return Header(
            operation,
            roster=self.counters.roster,
            group=self.counters.group,
            generation=self.counters.generation,
            rank=self.rank,
            step=step,
            cut_step=self.cut_step,
            total_samples=self.total_samples,
            ticket=ticket,
            count=count,
            payload_bytes=size_bytes,
        )

    def me(self) -> Identity:
        """Return who this trainer is."""
        return Identity(self.job_uid, ROLE_TRAINER, self.rank, self.incarnation, self.counters.generation)

    def expected(self, peer: Peer) -> Identity:
        """Return who the roster says a shard is."""
        return Identity(self.job_uid, ROLE_SHARD, peer.index, peer.incarnation, self.counters.generation)
