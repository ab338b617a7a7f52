"""The dense half of a DLRM: what every trainer holds a replica of.

Embedding vectors come in from the shards and their gradients go back; nothing here knows of tables or rows.
"""
