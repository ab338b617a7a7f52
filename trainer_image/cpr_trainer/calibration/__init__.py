"""What failures cost, tried: a whole job in one process and in memory, with losses where they are wanted.

It is made of the product's own parts: data, network, placement, arena and evaluation. `cpr_trainer.lone` trains, an
`Injection` does to the rows what failures would, `saved_rows` is what they go back to.
"""
