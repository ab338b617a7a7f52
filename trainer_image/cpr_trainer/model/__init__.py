"""The dense half of a DLRM, of which every trainer has a replica.

Embedding vectors arrive from the shards, and their gradients return to them; no module here depends on tables or rows.
"""
