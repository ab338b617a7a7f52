"""A cluster on this machine with Kubernetes' semantics: pods are processes, volumes folders, jobs JSON files."""
