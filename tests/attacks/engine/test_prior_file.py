import json
from pathlib import Path

import pytest
import torch
from torch import nn

from prunella.attacks.engine.prior_file import FORMAT, filled, read_prior, save_prior
from prunella.core.errors import AttackError
from prunella.core.files import write_tree

SHAPE = (1, 8, 8)


def about(**change: object) -> dict[str, str]:
    plain = {"format": FORMAT, "kind": "ggl", "shape": [1, 8, 8], "sizes": {"width": 3}}
    return {"prior": json.dumps({**plain, **change})}


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    file, network = tmp_path / "p.safetensors", nn.Linear(4, 3)
    save_prior(file, "ggl", network, SHAPE, {"width": 3})
    tree, sizes = read_prior(str(file), "ggl", SHAPE)
    other = filled(lambda: nn.Linear(4, 3), tree, str(file))
    assert sizes == {"width": 3} and file.stat().st_mode & 0o777 == 0o600
    assert torch.equal(other.weight, network.weight) and not other.weight.requires_grad and not other.training
    with pytest.raises(AttackError, match="p.safetensors does not have the weights"):
        filled(lambda: nn.Linear(4, 2), tree, str(file))


def test_sizes_cost_no_memory_until_the_weights_have_them() -> None:
    """A few bytes of metadata may name 4096 of everything: a gigabyte of convolutions."""
    made = []

    def build() -> nn.Module:
        made.append(nn.Conv2d(4096, 4096, 3))
        return made[0]

    with pytest.raises(AttackError, match="does not have the weights"):
        filled(build, {"weight": torch.zeros(1)}, "p.safetensors")
    assert made[0].weight.is_meta


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "not a prunella.prior.v1"),
        ({"prior": "{"}, "a damaged one"),
        (about(format="x"), "not a prunella.prior.v1"),
        (about(kind="rog"), "a prior for 'rog'"),
        (about(shape=[3, 8, 8]), r"not for 'ggl' on \[1, 8, 8\]"),
        (about(sizes={"width": 10**9}), "sizes"),
        (about(sizes={"width": True}), "sizes"),
        (about(sizes=None), "sizes"),
    ],
)
def test_another_file_is_refused_in_words(tmp_path: Path, metadata: dict[str, str] | None, words: str) -> None:
    write_tree(tmp_path / "p.safetensors", {"w": torch.zeros(1)}, metadata)
    with pytest.raises(AttackError, match=words):
        read_prior(str(tmp_path / "p.safetensors"), "ggl", SHAPE)


def test_no_file_garbage_and_weights_that_are_not_finite(tmp_path: Path) -> None:
    with pytest.raises(AttackError, match="prunella prior ggl"):
        read_prior("", "ggl", SHAPE)
    with pytest.raises(AttackError, match=r"missing is not .* \(no such file\): make one with .prunella prior ggl"):
        read_prior(str(tmp_path / "missing"), "ggl", SHAPE)
    (tmp_path / "pickle").write_bytes(b"\x80\x04.")
    with pytest.raises(AttackError, match="pickle is not a readable prior"):
        read_prior(str(tmp_path / "pickle"), "ggl", SHAPE)
    write_tree(tmp_path / "nan", {"w": torch.tensor([float("nan")])}, about())
    with pytest.raises(AttackError, match="not finite"):
        read_prior(str(tmp_path / "nan"), "ggl", SHAPE)
