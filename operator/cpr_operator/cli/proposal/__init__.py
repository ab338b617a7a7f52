"""A manifest for data that was inspected: pure decisions, each with its reason.

`label` and `columns` choose the use of each column, `tables` the ids and sizes of tables, `training` batches, dims and
memory. `manifest` puts them together, and `commented` writes them with the reasons as comments.
"""
