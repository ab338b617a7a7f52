"""Faults of nodes. Node 1 carries the store and the operator, whose own faults are elsewhere, so 2 and 3 are hit."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from random import Random

from cluster.harness.nodes import Daemon, Nodes
from simulation.real_cluster.failpoints.fault import FREE, Cost, Fault, Hit, Inject, Target, fault, surely

STABLE, OTHERS = 1, (2, 3)
HELD_S = (12.0, 30.0)
#: A node without its kubelet, or whose kubelet has no runtime, is not ready after 10 s. Kubernetes deletes its pods
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


def _deaf(nodes: Nodes, node: int) -> AbstractContextManager[object]:
    return nodes.blocked(node, 5 - node)


def _deaf_to_the_store(nodes: Nodes, node: int) -> AbstractContextManager[object]:
    return nodes.blocked(node, STABLE)


def _here(target: Target, node: int) -> Hit:
    return target.on(node)


def _both(target: Target, node: int) -> Hit:
    """All that talk over the way to the node."""
    return target.peers(node)


def _none(target: Target, node: int) -> Hit:
    return frozenset()


def _node(  # noqa: PLR0913 -- a row of the catalogue
    name: str,
    enter: Callable[[Nodes, int], AbstractContextManager[object]],
    hit: Callable[[Target, int], Hit],
    cost: Cost,
    holds_s: tuple[float, float] = HELD_S,
    *,
    bare: bool = True,
) -> Fault:
    return fault("nodes", name, _inject(enter, hit), cost, takes={"node"}, holds_s=holds_s, bare=bare)


NODES: tuple[Fault, ...] = (
    _node("a node has no power", _without_power, _here, LOST, bare=False),
    _node("a node is cut off", _cut, _both, LOST, bare=False),
    _node("a node is cut off for moments", _cut, _both, LOST, (1.0, 4.0), bare=False),
    _node("a node does not hear another", _deaf, _both, LOST, bare=False),
    _node("a node does not hear that of the store", _deaf_to_the_store, _both, LOST, bare=False),
    _node("the link of a node is slow", _fault("slow", "fast"), _both, LOST),
    _node("the link of a node loses packets", _fault("lossy", "lossless"), _both, LOST),
    _node("a node is drained", _drained, _here, Cost(ends=True, touches=True), bare=False),
    _node("a node's memory is short", _fault("squeeze", "relax"), _here, LOST),
    _node("a node's kubelet is dead", _halted("kubelet"), _none, FREE, UNNOTICED_S),
    _node("a node's runtime is dead", _halted("containerd"), _none, FREE, UNNOTICED_S),
    _node("kubelet and runtime of a node are dead", _halted("kubelet", "containerd"), _none, FREE, UNNOTICED_S),
    _node("a node resolves no names", _halted("dns"), _none, Cost(hinders=True)),
    _node("a node's proxy is dead", _halted("proxy"), _none, FREE),
)
