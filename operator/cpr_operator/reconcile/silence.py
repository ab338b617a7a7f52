"""Who is hung, by whose word. Members name peers whose heartbeat they miss; here is decided which end is at fault.

A broken link has two ends, and each may call the other silent. So whoever is called silent by most is judged first,
and once found hung bears witness no more: a member that is cut off from everybody takes nobody with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cpr_operator.desired.names import Role

#: How many members must miss a peer's heartbeat before it counts as hung, where so many could.
WITNESSES = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A living member as its peers may judge it, and as it may judge them.

    `node` is where it runs, empty if unknown. Only a `settled` member can be found hung: any other may still start or
    restore. `listens` says that it takes part in training, so that it would miss others.
    """

    role: Role
    node: str
    settled: bool
    listens: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a member counts as hung: by the word of these `witnesses`, and, if not empty, of whom it was `beside`.

    `beside` is a member that fell silent on the same node.
    """

    witnesses: tuple[str, ...]
    beside: str = ""


def judge(
    peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]], fallen: Mapping[str, str]
) -> Mapping[str, Verdict]:
    """The members that are hung, by name.

    `missed` holds, for each member that answered, the names whose heartbeat it misses. `fallen` are nodes on which a
    member fell silent a moment ago, with that member's name. Takes time in proportion to the names in `missed`.
    """
    accusers = _accusers(peers, missed)
    found = _by_enough(peers, accusers)
    for name in tuple(_in_doubt(peers, accusers, found)):
        del found[name]
    return found | dict(_beside(peers, accusers, found, fallen))


def _accusers(peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Who misses each member that can be hung. Shards hear trainers only, trainers hear everybody."""
    accusers: dict[str, list[str]] = defaultdict(list)
    for witness, names in missed.items():
        for name in names:
            peer = peers.get(name)
            if peer is not None and peer.settled and name != witness and "trainer" in (peer.role, peers[witness].role):
                accusers[name].append(witness)
    return {name: tuple(witnesses) for name, witnesses in accusers.items()}


def _by_enough(peers: Mapping[str, Peer], accusers: Mapping[str, tuple[str, ...]]) -> dict[str, Verdict]:
    """Those that enough others miss who are not hung themselves; of two that miss only each other, the trainer.

    A shard holds state that nobody else has, a trainer a copy of what the others or a save hold.
    """
    found: dict[str, Verdict] = {}
    listeners = Counter(peer.role for peer in peers.values() if peer.listens)
    for name in sorted(accusers, key=lambda name: (-len(accusers[name]), peers[name].role != "trainer")):
        peer, witnesses = peers[name], tuple(witness for witness in accusers[name] if witness not in found)
        could = listeners["trainer"] + sum(not peers[witness].listens for witness in witnesses)
        if peer.role == "trainer":
            could += listeners["shard"] - peer.listens
        if witnesses and len(witnesses) >= min(WITNESSES, could):
            found[name] = Verdict(witnesses)
            listeners[peer.role] -= peer.listens
    return found


def _in_doubt(
    peers: Mapping[str, Peer], accusers: Mapping[str, tuple[str, ...]], found: Mapping[str, Verdict]
) -> Iterator[str]:
    """Several members, more than half of a role, by the word of one that is called silent itself: it may be at fault.

    If it is, its other peers will say so a moment later.
    """
    sizes, by_word = Counter(peer.role for peer in peers.values()), defaultdict(list)
    for name, verdict in found.items():
        if len(verdict.witnesses) == 1:
            by_word[verdict.witnesses[0], peers[name].role].append(name)
    for (witness, role), names in by_word.items():
        if witness in accusers and len(names) > max(1, sizes[role] // 2):
            yield from names


def _beside(
    peers: Mapping[str, Peer],
    accusers: Mapping[str, tuple[str, ...]],
    found: Mapping[str, Verdict],
    fallen: Mapping[str, str],
) -> Iterator[tuple[str, Verdict]]:
    """Those on a node that fell silent: the word of one on another node is enough, since the node itself is gone."""
    nodes = {**fallen, **{peers[name].node: name for name in found}}
    for name, witnesses in accusers.items():
        node = peers[name].node
        if name in found or not node or node not in nodes:
            continue
        elsewhere = tuple(w for w in witnesses if w not in found and peers[w].node not in nodes)
        if elsewhere:
            yield name, Verdict(elsewhere, beside=nodes[node])
