"""Beside what `cprjob bench train` puts a job.

`single` trains the same without CPRJob, on `tables` of torch; `samples` writes what all train on, and `gauge` says how
fast the machine is.
"""
