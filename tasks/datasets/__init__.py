"""Datasets by name. Each is three functions of where it lies (``tasks.datasets.dataset``)."""

from tasks.datasets.dataset import Dataset
from tasks.datasets.digits import DIGITS

DATASETS: dict[str, Dataset] = {
    "digits": DIGITS,
}
