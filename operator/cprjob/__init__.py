"""`fit`: a CPRJob trained in the Python process that calls it, as in a notebook."""

from cprjob.fitting import fit

__all__ = ["fit"]
