"""The environment of `benchmarks/scripts/operator_scale.py`: a control plane, fake kubelets, and reports of pods."""
