"""The learning task: models, datasets, partitions, one step of training.

Import-light, since every message a client answers starts a new process: torchvision, Flower Datasets, pyarrow and PIL
are imported inside the functions that need them.
"""

from prunella.tasks.datasets import DATASETS
from prunella.tasks.models import MODELS

__all__ = ["DATASETS", "MODELS"]
