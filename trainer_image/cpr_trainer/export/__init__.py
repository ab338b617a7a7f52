"""Exports the model of an anchor as files. docs/serving.md describes them."""
