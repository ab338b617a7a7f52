"""What the processes of `cprjob_bench.process` do: the code of the trainer image, measured."""
