"""A shard's saves: the main thread decides and marks rows, one thread writes them."""
