"""A count of private examples, released with Laplace noise: LTP Sec. 4.4, the validation of Fed-LTP.

One example more or less changes a count by one at most, so noise of scale lambda makes one answer 1/lambda-DP (Dwork et
al., 2006); ``privacy.accounting`` composes the answers with the training steps. The noise is rounded to a whole number,
which is post-processing: the low bits of a float would tell which count it was added to (Mironov, CCS 2012).

>>> isinstance(noisy_count(7, 2.0, PrivateGenerator(bytes(32))), int)
True
"""

import math

from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator


def noisy_count(count: int, scale: float, generator: PrivateGenerator) -> int:
    """``count`` and noise of scale ``scale``, which must be above 0. The answer may be negative: who uses it clips."""
    if not 0 < scale < math.inf:
        raise DefenseError(f"noise of a count has a finite scale above 0, got {scale:g}")
    up, down = generator.exponential(2).tolist()
    noise: float = scale * (up - down)
    return count + round(noise)  # the difference of two exponentials is Laplace
