"""The images of a cell: a local copy where there is one, the seed's own order, a client's first examples."""

from pathlib import Path

import pytest
import torch

from prunella.benchmarks.engine.images import chosen_images, client_images, every_test_image, first, part, place
from prunella.core.errors import ConfigError
from prunella.tasks.data import Partition


def test_a_local_copy_is_used_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert place("mnist", tmp_path) == f"mnist:{tmp_path / 'mnist'}"
    assert place("femnist", tmp_path) == "femnist" and place("mnist", None) == "mnist"


def test_a_seed_has_its_own_images_and_more_of_them_begin_with_the_same() -> None:
    one, more, other = (chosen_images("digits", None, seed, many) for seed, many in ((0, 3), (0, 5), (1, 3)))
    assert torch.equal(one.x, part(more, 0, 3).x) and not torch.equal(one.x, other.x)
    assert len(every_test_image("digits", None)) > 5


def test_clients_can_be_given_their_first_examples_only() -> None:
    whole = client_images("digits", None, Partition("iid", clients=2, seed=0))
    few = first(whole, 7)
    assert len(few) == 7 and torch.equal(few.x, whole.x[:7]) and torch.equal(few.y, whole.y[:7])
    assert first(whole, 0) is whole


def test_a_dataset_without_test_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.benchmarks.engine.images.cached_test", lambda *asked: None)
    with pytest.raises(ConfigError, match="no test examples"):
        every_test_image("digits", None)
