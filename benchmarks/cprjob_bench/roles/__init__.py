"""What the processes of `cprjob_bench.bench_process` do: the code of the trainer image, measured."""
