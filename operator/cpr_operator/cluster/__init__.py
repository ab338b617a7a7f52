"""The world outside the decisions: a Kubernetes API server, or processes on this machine, behind one Protocol."""
