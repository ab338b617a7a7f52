"""Manifests and rosters as a job's status wants them: pure builders, equal input gives equal output."""
