"""Builds the manifests and rosters for a job's status. Pure: equal input gives equal output."""
