"""All faults of the storm, and what is no part of it, with the reason."""

from simulation.real_cluster.failpoints.fault import Fault
from simulation.real_cluster.failpoints.nodes import NODES
from simulation.real_cluster.failpoints.operations import OPERATOR, USER
from simulation.real_cluster.failpoints.pods import PODS, PROCESSES
from simulation.real_cluster.failpoints.services import API, STORE

CATALOGUE: tuple[Fault, ...] = (*PODS, *PROCESSES, *NODES, *STORE, *API, *OPERATOR, *USER)
BY_NAME = {fault.kind.name: fault for fault in CATALOGUE}
LEFT_OUT = {
    "a node's clock is wrong": "nodes share the machine's clock: a time namespace shifts only clocks that nobody sets",
    "a node's disk is full": "nodes share the machine's disk; a kubelet that believes in a full one deletes images, "
    "which no registry of this cluster has",
    "the link of a node is late": "the kernel has no netem; a slow link delays by its queue, and a lossy one by what "
    "is sent again",
    "the operator is of the version before": "its images take minutes to build; tests/cluster/test_upgrade.py has it",
    "the operator is killed at a call of our choice": "no call can be named from outside; "
    "tests/simulation/control_plane/test_crash_at_every_call.py kills it before and after each",
}
