"""The arrays that row numbers and row values come in."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
#: bfloat16, the upper half of a float32. numpy lacks the type, so its bits are uint16 here.
Halves = NDArray[np.uint16]
#: The values of rows as they are stored or sent.
Values = Floats | Halves
