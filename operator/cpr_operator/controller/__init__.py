"""One reconcile of a job: reads the cluster, decides by `cpr_operator.reconcile`, writes the outcome."""

from cpr_operator.controller.controller import Controller

__all__ = ["Controller"]
