"""The learning task: models, datasets, partitions, one step of training. Import-light, since every message a client
answers starts a new process: torchvision, datasets and pyarrow are imported where they are used."""

from tasks.models import MODELS

__all__ = ["MODELS"]
