"""Imports models that were trained elsewhere as anchors: reads their files, matches tensors by name, writes shards."""
