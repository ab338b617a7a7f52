"""A cluster on this machine: pods are processes, volumes folders, jobs JSON files; semantics are Kubernetes'."""

from cpr_operator.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
