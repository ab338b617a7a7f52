"""Faults of nodes. Node 1 carries the store and the operator, so faults hit nodes 2 and 3."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random

from cluster.harness.nodes import Daemon, Nodes
from simulation.real_cluster.failpoints.fault import FREE, NO_MEMBER, Cost, Fault, Hit, Inject, Span, Target, surely

STABLE, OTHERS = 1, (2, 3)
HELD_S = (12.0, 30.0)
#: A node without its kubelet, or with a kubelet without a runtime, is not ready after 10 s. Kubernetes deletes its pods
#: after another 15 s, which would be a fault of another cost.
UNNOTICED_S = (6.0, 18.0)
LOST = Cost(kills=True, hinders=True, touches=True)


def _inject(enter: Callable[[Nodes, int], AbstractContextManager[object]], hit: Callable[[Target, int], Hit]) -> Inject:
    @contextmanager
    def inject(target: Target, random: Random) -> Iterator[Hit]:
        node = random.choice(OTHERS)
        before = hit(target, node)
        with enter(target.cluster.nodes, node):
            yield before
        target.cluster.nodes.wait_ready(node, within_s=120)

    return inject


@contextmanager
def _without_power(nodes: Nodes, node: int) -> Iterator[None]:
    nodes.kill(node)
    try:
        yield
    finally:
        surely(lambda: nodes.start(node))


@contextmanager
def _cut(nodes: Nodes, node: int) -> Iterator[None]:
    nodes.cut(node)
    try:
        yield
    finally:
        nodes.join(node)


@contextmanager
def _drained(nodes: Nodes, node: int) -> Iterator[None]:
    surely(lambda: nodes.kubectl("cordon", nodes.name(node)), 20)
    try:
        nodes.kubectl(
            *("drain", nodes.name(node), "--pod-selector", "cprjob.io/job", "--delete-emptydir-data", "--timeout=60s"),
            check=False,  # a budget or the API server may refuse: what was evicted until then is
        )
        yield
    finally:
        surely(lambda: nodes.kubectl("uncordon", nodes.name(node)))


def _fault(inject: str, undo: str) -> Callable[[Nodes, int], AbstractContextManager[object]]:
    return lambda nodes, node: nodes.fault(inject, undo, node)


def _halted(*daemons: Daemon) -> Callable[[Nodes, int], AbstractContextManager[object]]:
    return lambda nodes, node: nodes.halted(node, *daemons)


def _no_member(target: Target, node: int) -> Hit:
    return NO_MEMBER


def _node(  # noqa: PLR0913 -- a row of the catalogue
    name: str,
    enter: Callable[[Nodes, int], AbstractContextManager[object]],
    hit: Callable[[Target, int], Hit],
    cost: Cost,
    holds_s: Span = HELD_S,
    *,
    bare: bool = True,
) -> Fault:
    return Fault("nodes", name, _inject(enter, hit), cost, {"node"}, holds_s, bare)


NODES: tuple[Fault, ...] = (
    _node("a node has no power", _without_power, Target.on, LOST, bare=False),
    _node("a node is cut off", _cut, Target.peers, LOST, bare=False),
    _node("a node is cut off for moments", _cut, Target.peers, LOST, (1.0, 4.0), bare=False),
    _node(
        "a node does not hear another",
        lambda nodes, node: nodes.blocked(node, 5 - node),
        Target.peers,
        LOST,
        bare=False,
    ),
    _node(
        "a node does not hear that of the store",
        lambda nodes, node: nodes.blocked(node, STABLE),
        Target.peers,
        LOST,
        bare=False,
    ),
    _node("the link of a node is slow", _fault("slow", "fast"), Target.peers, LOST),
    _node("the link of a node loses packets", _fault("lossy", "lossless"), Target.peers, LOST),
    _node("a node is drained", _drained, Target.on, Cost(ends=True, touches=True), bare=False),
    _node("a node's memory is short", _fault("squeeze", "relax"), Target.on, LOST),
    _node("a node's kubelet is dead", _halted("kubelet"), _no_member, FREE, UNNOTICED_S),
    _node("a node's runtime is dead", _halted("containerd"), _no_member, FREE, UNNOTICED_S),
    _node("kubelet and runtime of a node are dead", _halted("kubelet", "containerd"), _no_member, FREE, UNNOTICED_S),
    _node("a node resolves no names", _halted("dns"), _no_member, Cost(hinders=True)),
    _node("a node's proxy is dead", _halted("proxy"), _no_member, FREE),
)
