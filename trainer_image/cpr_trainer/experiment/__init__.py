"""Experiments on what failures cost: a whole job in one process and in memory, with losses where they are wanted.

Not a way through the house but a model of it, made of its own parts: the product's data, network, placement, arena and
evaluation. `cpr_trainer.lone` trains, an `Injection` does to the rows what failures would, `saved_rows` is what they go
back to.
"""
