"""Embedding rows: their place, the lookups of a batch, and on a shard their memory, optimizer and saves in progress."""
