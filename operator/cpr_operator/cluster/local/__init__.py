"""A cluster on this machine with Kubernetes' semantics: pods are processes, volumes folders, jobs JSON files."""

from cpr_operator.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
