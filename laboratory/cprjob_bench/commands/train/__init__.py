"""`cprjob bench train`: how fast CPRJob trains on this machine, beside other programs.

`presets` are the models, `contenders` start what is compared, `measuring` takes their `windows`, `machine` is what else
there is to know of that time, `show` tells it; `command` is all of it in order.
"""

from cprjob_bench.commands.train.command import TrainOptions, bench_train

__all__ = ["TrainOptions", "bench_train"]
