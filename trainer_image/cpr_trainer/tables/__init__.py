"""The sparse half: embedding rows, their first values and their optimizer."""
