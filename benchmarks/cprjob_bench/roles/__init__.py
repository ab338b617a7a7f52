"""Roles of `cprjob_bench.bench_process`, which measure the code of the trainer image."""
