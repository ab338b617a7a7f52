"""Measurements of the snapshot engine on this machine: speed, effect on training, and size of saves.

`raw_transfers` times saves, restores and a raw client. `serving` measures a real shard process that saves during
training. `saves` measures the size of saves by strategy and bit width. `main` runs all measurements. All objects are
written under a separate job uid, and deleted.
"""
