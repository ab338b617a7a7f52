"""Checkpoints, from the cut to the restore; the folders are in the order of their use.

- `format`: the objects in the store. Keys, manifests, parts, quantised rows, and errors in them.
- `write`: a shard's saves. Their time, their rows, the earlier saves below them, and the upload.
- `anchor`: the leader's side. Commits the dense state with the saves of all shards, and prunes.
- `restore`: the choice of a save, newest first, and its verification and loading.
- `restore_points`: the saves of a job, as `cprjob snapshots` lists them.
"""
