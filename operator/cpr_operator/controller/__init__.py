"""One reconcile of a job: reads the cluster, decides by `cpr_operator.reconcile`, writes the outcome."""
