"""Members of a control group over loopback, each with a dense state of a few bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cpr_contract.env import CONTROL_PORT
from cpr_contract.roster import Counters, Peer, TrainerRoster
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import Certificates
from cpr_trainer.trainer.allreduce.group import NO_STATE, Group
from cpr_trainer.trainer.allreduce.group_follower import GroupFollower
from cpr_trainer.trainer.allreduce.group_leader import GroupLeader
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from support.wait_limit import poll_interrupts

HOST = "127.0.0.1"


@dataclass
class Replica:
    """A dense state of a few bytes."""

    data: bytes
    done: int = NO_STATE

    def pack(self) -> bytes:
        return self.data

    def unpack(self, data: bytes | bytearray, done: int) -> None:
        self.data, self.done = bytes(data), done


@dataclass
class Member:
    rank: int
    incarnation: int = 1
    key: bytes = b"key"
    host: str = HOST
    certificates: Certificates | None = None
    replica: Replica = field(default_factory=lambda: Replica(b""))

    def __post_init__(self) -> None:
        me = Identity("job", "trainer", self.rank, self.incarnation, 1)
        self.listener = PeerListener(me, self.key, self.host, 0, 5.0, self.certificates)
        self.liveness = PeerLiveness()
        self.listener.start()

    @property
    def peer(self) -> Peer:
        return Peer(self.rank, self.incarnation, self.host, self.listener.port - CONTROL_PORT)

    def make_group(self, roster: TrainerRoster) -> Group:
        own = replace(roster, index=self.rank, incarnation=self.incarnation)
        self.group: Group  # Kept: the others' calls end where one lets go of its group.
        if self.rank == roster.leader:
            self.group = GroupLeader(self.listener, self.liveness, own)
        else:
            self.group = GroupFollower(self.listener, self.liveness, own, iter(lambda: 0.02, None))
        return self.group

    def join(self, group: Group) -> bool:
        def provide() -> None:
            self.replica.unpack(b"first", 0)

        return group.join(self.replica, provide, poll_interrupts)


def roster_of(members: list[Member], group: int, leader: int = 0) -> TrainerRoster:
    peers = tuple(member.peer for member in members)
    return TrainerRoster(1, Counters(group, group, 1), 0, 1, 1, leader, peers, (), None, 0, 60.0)
