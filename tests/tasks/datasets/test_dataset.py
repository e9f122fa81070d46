"""Every entry keeps the contract of ``Dataset``."""

import pytest

from prunella.core.errors import ConfigError
from prunella.tasks import DATASETS

NAMES = "digits mnist fashion-mnist femnist cifar10 cifar100 svhn celeba imagefolder parquet"


def test_every_documented_dataset_is_there():
    assert list(DATASETS) == NAMES.split()


@pytest.mark.parametrize("name", NAMES.split())
def test_describes_itself_or_asks_where_it_lies(name):
    if name in ("imagefolder", "parquet"):
        with pytest.raises(ConfigError, match="say where"):
            DATASETS[name].describe(None)
    else:
        (channels, height, width), classes = DATASETS[name].describe(None)
        assert channels in (1, 3) and height == width >= 8 and classes >= 2
