"""Samples of a job: opened, read in blocks, decoded, and loaded step by step.

Read the modules in the order of the data: `open` finds the data of a job, `files` has the blocks of its files, `text`,
`parquet` and `user` read these, `reader` reads them ahead of their use, `decode` makes rows of a block by the columns
in `schema`, `dataset` has the batches, `order` the rows of each step, and `loader` prepares the next step while the
current one is computed. `vocabularies` reads or builds the vocabularies of tables, and `inspection` describes data.
"""
