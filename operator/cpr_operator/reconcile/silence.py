"""Decides which members are hung, from the peers whose heartbeat each member misses.

A broken link has two ends, and each may report the other as silent. The member that most others report is therefore
judged first. Once it is found hung, its own reports no longer count, so a member that is cut off condemns no others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cpr_operator.desired.names import Role

#: The number of members that must miss a peer's heartbeat before it counts as hung, if that many could.
WITNESSES = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A living member, which may be silent or report others as silent.

    node: the member's node, empty if unknown.
    settled: whether it can be found hung. Other members may still start or restore.
    listens: whether it takes part in training, so that it would miss the heartbeats of others.
    """

    role: Role
    node: str
    settled: bool
    listens: bool


@dataclass(frozen=True, slots=True)
class HungEvidence:
    """Why a member counts as hung.

    witnesses: the members that report it as silent; none if nobody is left who would hear it.
    same_node: another silent member on the same node; empty if there is none.
    """

    witnesses: tuple[str, ...]
    same_node: str = ""


def find_hung(
    peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]], failed_nodes: Mapping[str, str]
) -> Mapping[str, HungEvidence]:
    """The members that are hung, by name.

    `missed` has, for each member that answered, the names of the members whose heartbeat it misses.
    `failed_nodes` has the nodes on which a member has just become silent, with that member's name. The time
    is proportional to the number of names in `missed`.
    """
    reporters = _reporters(peers, missed)
    found = _by_enough(peers, reporters)
    for name in tuple(_in_doubt(peers, reporters, found)):
        del found[name]
    return found | dict(_on_same_nodes(peers, reporters, found, failed_nodes))


def with_unwatched(
    found: Mapping[str, HungEvidence], peers: Mapping[str, Peer], gone: Collection[str]
) -> Mapping[str, HungEvidence]:
    """The verdicts, with those on shards of a lost node that no trainer is left to hear.

    `gone` has the names of all members of that node. Only trainers hear shards. If the last one is found hung there,
    nobody will ever miss the shards beside it, and the job would wait for them.
    """
    listens = {name for name, peer in peers.items() if peer.role == "trainer" and peer.listens}
    trainer = next((name for name in found if name in gone and peers[name].role == "trainer"), "")
    if not trainer or listens - found.keys():
        return found
    shards = (name for name in gone if name in peers and peers[name].role == "shard" and peers[name].settled)
    return {**{name: HungEvidence((), same_node=trainer) for name in shards}, **found}


def _reporters(peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """The members that miss each settled member. Shards hear only trainers; trainers hear all members."""
    reporters: dict[str, list[str]] = defaultdict(list)
    for witness, names in missed.items():
        for name in names:
            peer = peers.get(name)
            if peer is not None and peer.settled and name != witness and "trainer" in (peer.role, peers[witness].role):
                reporters[name].append(witness)
    return {name: tuple(witnesses) for name, witnesses in reporters.items()}


def _by_enough(peers: Mapping[str, Peer], reporters: Mapping[str, tuple[str, ...]]) -> dict[str, HungEvidence]:
    """The members that enough others miss, not counting hung ones. Of two that miss only each other, the trainer.

    A shard has state that no other member has. A trainer has a copy of state that others or a save have.
    """
    found: dict[str, HungEvidence] = {}
    listeners = Counter(peer.role for peer in peers.values() if peer.listens)
    for name in sorted(reporters, key=lambda name: (-len(reporters[name]), peers[name].role != "trainer")):
        peer, witnesses = peers[name], tuple(witness for witness in reporters[name] if witness not in found)
        could = listeners["trainer"] + sum(not peers[witness].listens for witness in witnesses)
        if peer.role == "trainer":
            could += listeners["shard"] - peer.listens
        if witnesses and len(witnesses) >= min(WITNESSES, could):
            found[name] = HungEvidence(witnesses)
            listeners[peer.role] -= peer.listens
    return found


def _in_doubt(
    peers: Mapping[str, Peer], reporters: Mapping[str, tuple[str, ...]], found: Mapping[str, HungEvidence]
) -> Iterator[str]:
    """Members that only one witness reports, if they are more than half of a role and the witness is itself reported.

    The witness may be at fault. If it is, its other peers report that a moment later.
    """
    sizes, by_witness = Counter(peer.role for peer in peers.values()), defaultdict(list)
    for name, evidence in found.items():
        if len(evidence.witnesses) == 1:
            by_witness[evidence.witnesses[0], peers[name].role].append(name)
    for (witness, role), names in by_witness.items():
        if witness in reporters and len(names) > max(1, sizes[role] // 2):
            yield from names


def _on_same_nodes(
    peers: Mapping[str, Peer],
    reporters: Mapping[str, tuple[str, ...]],
    found: Mapping[str, HungEvidence],
    failed_nodes: Mapping[str, str],
) -> Iterator[tuple[str, HungEvidence]]:
    """Members of a silent node. One witness on another node is enough, because the node itself is gone."""
    nodes = {**failed_nodes, **{peers[name].node: name for name in found}}
    for name, witnesses in reporters.items():
        node = peers[name].node
        if name in found or not node or node not in nodes:
            continue
        elsewhere = tuple(w for w in witnesses if w not in found and peers[w].node not in nodes)
        if elsewhere:
            yield name, HungEvidence(elsewhere, same_node=nodes[node])
