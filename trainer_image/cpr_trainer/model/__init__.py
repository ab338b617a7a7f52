"""The dense half of a DLRM; every trainer has a replica.

Embedding vectors arrive from the shards, and their gradients return to them; no module here depends on tables or rows.
"""
