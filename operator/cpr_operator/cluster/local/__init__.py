"""A cluster on this machine: pods are processes, volumes folders, objects JSON files; Kubernetes' semantics and errors."""

from cpr_operator.cluster.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
