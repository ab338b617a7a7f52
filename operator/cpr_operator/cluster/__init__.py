"""Clusters behind one Protocol: a Kubernetes API server, or processes on this machine."""
