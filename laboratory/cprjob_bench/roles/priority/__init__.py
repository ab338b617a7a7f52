"""A whole job in one process, whose shards save by a strategy and fail.

`schedule` says when they save and how much, `saving` does it to the rows, `main` runs one trial after the other.
"""
