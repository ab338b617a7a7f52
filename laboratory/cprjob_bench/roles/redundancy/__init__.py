"""The processes of `cprjob bench redundancy`: members of its jobs as those of the trainer image, and what it counts.

`counting` counts what members send and keep. `differences`, `eager_shard` and `eager_trainer` are ECRec's way to keep
parity, for the comparison alone; `main` puts it in the place of the product's. `sweep` writes samples.
"""
