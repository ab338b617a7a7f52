"""Training in a notebook: a job in one Python process, by the code of its trainers and in memory.

`fitting` trains, `fitted` is what comes out. `cprjob.fit` is the way in: it reads what is to be trained.
"""

from cpr_trainer.notebook.fitted import Fitted, Score
from cpr_trainer.notebook.fitting import train

__all__ = ["Fitted", "Score", "train"]
