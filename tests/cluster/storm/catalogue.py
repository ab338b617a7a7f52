"""All faults of the storm, and what is no part of it, with the reason."""

from cluster.storm.fault import Fault
from cluster.storm.nodes import NODES
from cluster.storm.people import OPERATOR, USER
from cluster.storm.pods import PODS, PROCESSES
from cluster.storm.services import API, STORE

CATALOGUE: tuple[Fault, ...] = (*PODS, *PROCESSES, *NODES, *STORE, *API, *OPERATOR, *USER)
BY_NAME = {fault.kind.name: fault for fault in CATALOGUE}
LEFT_OUT = {
    "a node's clock is wrong": "nodes share the machine's clock: a time namespace shifts only clocks that nobody sets",
    "a node's disk is full": "nodes share the machine's disk; a kubelet that believes in a full one deletes images, "
    "which no registry of this cluster has",
    "the link of a node is late": "the kernel has no netem; a slow link delays by its queue, and a lossy one by what "
    "is sent again",
    "the operator is of the version before": "its images take minutes to build; tests/cluster/test_upgrade.py has it",
    "the operator is killed at a call of our choice": "no call can be named from outside; tests/unit/crash kills it "
    "before and after each",
}
