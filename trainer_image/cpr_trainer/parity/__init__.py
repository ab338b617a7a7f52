"""Parity among shards: each keeps the XOR of parts of its neighbours' rows, and a lost shard is computed from them.

The core is arithmetic and arrays without I/O: `coding` assigns parts to holders and encodes rows, `journal` tracks the
changes that parity lacks, `parity_server` has the parity itself.
"""
