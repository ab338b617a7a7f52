"""Checkpoints, from the cut to the restore; the folders are in the order of their use.

- `format`: what lies in the store. Keys, manifests, parts, quantised rows, and what can be wrong with them.
- `write`: a shard's saves. When, of which rows, on which earlier saves, and how they get into the store.
- `anchor`: the leader's side. Commits the dense state with the saves of all shards, and prunes.
- `restore`: which saves may be taken, newest first, and how one is verified and loaded.
- `inventory`: what is saved, as people look at it.
"""
