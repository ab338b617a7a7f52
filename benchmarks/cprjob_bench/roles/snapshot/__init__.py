"""Measurements of the snapshot engine on this machine: speed, what training notices of it, and bytes.

`transfers` times saves and restores beside the `raw` client, `serving` a real shard process that saves while it is
trained, `cuts` weighs the saves of each strategy and bit width; `main` does all of it in order. Everything is written
under a job uid of its own, and deleted.
"""
