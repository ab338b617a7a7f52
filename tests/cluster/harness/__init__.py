"""What the tests on a real cluster are written with: nodes, faults, an object store, namespaces."""

from harness.cluster import Cluster, UnavailableError
from harness.pods import Pod, sleeper
from harness.space import Space
from harness.store import Store
from harness.waiting import until

__all__ = ["Cluster", "Pod", "Space", "Store", "UnavailableError", "sleeper", "until"]
