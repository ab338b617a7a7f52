"""Restores: the candidates of a lineage, and loading the newest that verifies."""
