"""What `benchmarks/scripts/operator_scale.py` measures the operator against: a control plane, kubelets, reports."""
