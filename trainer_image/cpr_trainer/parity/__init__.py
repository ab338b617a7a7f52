"""Parity among shards: each keeps the XOR of parts of its neighbours' rows, and a lost shard is computed from them.

The core is arithmetic and arrays: `ring` says who holds what, `images` what is coded, `stream` and `journal` what
parity lacks of a shard, `store` the parity itself. Nothing in them does I/O.
"""
