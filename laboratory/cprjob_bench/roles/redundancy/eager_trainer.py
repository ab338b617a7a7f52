"""The trainer's part of ECRec's two-phase commit: once all shards have staged a push, it tells all to commit it.

As in the product, the next steps go on meanwhile, as far as the window for pushes allows.
"""

from __future__ import annotations

import random
from collections import defaultdict

from cpr_contract.roster import Peer
from cpr_trainer.exchange.frames import Header, Operation
from cpr_trainer.exchange.handshake import Session
from cpr_trainer.exchange.link import Link

#: A shard says by it that it has staged a push, with the holders of its parity; a trainer that it is to commit it.
STAGED, COMMIT = Operation.STANDING, Operation.STAND


class Rounds:
    """The commits of one trainer to its `links`. Everything happens under the exchange's lock."""

    def __init__(self) -> None:
        self.links: list[EagerLink] = []
        self._votes = defaultdict[int, set[int]](set)

    def staged(self, shard: int, step: int) -> None:
        """A shard has staged a step's push: when all have, let all commit."""
        votes = self._votes[step]
        votes.add(shard)
        if len(votes) == len(self.links):
            del self._votes[step]
            for link in self.links:
                link.commit(step)


class EagerLink(Link):
    """A link whose pushes are acknowledged once they are committed. All of a process have to do with each other."""

    rounds = Rounds()

    def __init__(self, session: Session, peer: Peer, rng: random.Random, now: float) -> None:
        super().__init__(session, peer, rng, now)
        self.rounds.links.append(self)

    def commit(self, step: int) -> None:
        """Tell the shard to commit a step's push, and the parity that others sent it of that step."""
        self._send(self._session.header(COMMIT, step))

    def _on_answer(self, header: Header) -> None:
        if header.operation is STAGED:
            self.rounds.staged(self.peer.index, header.step)
        else:
            super()._on_answer(header)
