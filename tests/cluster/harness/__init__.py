"""The tools of tests on a real cluster: nodes, faults, an object store, namespaces."""

from cluster.harness.cluster import Cluster, UnavailableError
from cluster.harness.pods import Pod
from cluster.harness.space import Space
from cluster.harness.store import Store
from cluster.harness.waiting import until

__all__ = ["Cluster", "Pod", "Space", "Store", "UnavailableError", "until"]
