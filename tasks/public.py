"""Public examples on the server: what a scheme may look at before any client trains. Never a client's own.

They are a part of the dataset's test examples, set apart by the run's seed and no longer used for evaluation, so that
a mask chosen with them is not tested on them. Where the server has no test examples, or fewer than 128, they are
scikit-learn's digits, resized to the task's images.

>>> public, rest = set_apart(Task("cnn", (1, 8, 8), 10), load_test("digits", None), seed=0)
>>> len(public), len(rest)
(89, 270)
"""

import torch

from prunella.core.errors import DataError
from prunella.core.randomness import stream
from prunella.tasks.data import load_test
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

SHARE = 4  # every fourth test example is public
MINIMUM = 32


def in_shape(examples: Examples, task: Task) -> Examples:
    """Images [N, C, H, W] resized to the task's, labels folded into its classes."""
    x, y = examples.x, examples.y
    if tuple(x.shape[1:]) != task.shape:
        x = torch.nn.functional.interpolate(x[:, :1], task.shape[1:], mode="bilinear").expand(-1, task.shape[0], -1, -1)
    return Examples(x.contiguous().clamp(0, 1), y % task.classes)


def digits() -> Examples:
    """Scikit-learn's digits, which every installation has."""
    found = load_test("digits", None)
    if found is None:
        raise DataError("scikit-learn's bundled digits are missing")
    return found


def set_apart(task: Task, test: Examples | None, seed: int) -> tuple[Examples, Examples | None]:
    """The public examples, and the test examples that remain."""
    if test is None or len(test) < SHARE * MINIMUM:
        return in_shape(digits(), task), test
    order = torch.randperm(len(test), generator=stream(seed, purpose="public"))
    few, rest = order[: len(test) // SHARE], order[len(test) // SHARE :].sort().values
    return Examples(test.x[few], test.y[few]), Examples(test.x[rest], test.y[rest])
