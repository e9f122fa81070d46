"""The model of a message, and what earlier messages left on the client's disk."""

from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from prunella.core.errors import WireError
from prunella.core.trees import Tree, apply_mask, full_mask
from prunella.flower.arrays import MARK, close_record
from prunella.flower.received import fresh_weights, open_model, tells_mask
from prunella.flower.scheme import FRESH, SchemeOrder
from prunella.flower.site import Site
from prunella.wire.encode import encode_mask
from prunella.wire.records import to_dense
from tests.flower.foreign import Net
from tests.flower.test_defend import Norm

STARTS = SchemeOrder("lotteryfl", 1, 0.5, starts=True)


def site(folder: Path) -> Site:
    return Site(Context(1, 1, {"state-dir": str(folder)}, RecordDict(), {"defenses": "none"}), "train")


def weights(module: torch.nn.Module) -> Tree:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_mask_beside_a_dense_message_is_what_a_coded_one_is_read_by(tmp_path: Path) -> None:
    own, sent = site(tmp_path), weights(Net())
    mask = {**full_mask(sent), "fc1.weight": torch.rand(sent["fc1.weight"].shape) < 0.5}
    dense = RecordDict({"arrays": to_dense(sent), MARK: ConfigRecord({"mask": encode_mask(mask)})})
    assert not tells_mask(RecordDict({"arrays": to_dense(sent)})) and tells_mask(dense)
    coded = RecordDict({"arrays": close_record(apply_mask(sent, mask), mask, mask)[0]})
    with pytest.raises(WireError):
        open_model(own, coded)
    for content in (dense, coded):
        name, found, under = open_model(own, content)
        assert name == "arrays" and all(torch.equal(under[n], mask[n]) for n in mask)
        assert all(torch.equal(found[n], t) for n, t in apply_mask(sent, mask).items())


def test_what_the_run_starts_from_stays_where_it_was_told(tmp_path: Path) -> None:
    """Without batch norm's statistics, whose counter changes its type."""
    own, first, later = site(tmp_path), weights(Norm()), weights(Norm())
    message = RecordDict({"arrays": ArrayRecord()})
    assert fresh_weights(own, message, later, SchemeOrder("lotteryfl", 2, 0.5)) is None
    beside = RecordDict({**message, FRESH: to_dense(first)})
    told = [
        fresh_weights(own, beside, later, SchemeOrder("lotteryfl", 2, 0.5)),
        fresh_weights(own, message, later, SchemeOrder("lotteryfl", 3, 0.5)),
        fresh_weights(site(tmp_path / "b"), message, first, STARTS),
    ]
    for found in told:
        assert found is not None and not any("running" in name for name in found)
        assert all(torch.equal(first[name], tensor) for name, tensor in found.items()) and "conv.weight" in found
    with pytest.raises(WireError, match="not those of this model"):
        fresh_weights(own, RecordDict({**message, FRESH: to_dense({"conv.weight": torch.zeros(2)})}), later, STARTS)


def test_numbered_arrays_in_another_order_are_no_model(tmp_path: Path) -> None:
    """An app takes them by their place and a defense by their name: a difference of two layers of one shape, which the
    server chose, would be in what leaves, and decide what does."""
    layers = {str(at): torch.full((4, 4), float(at)) for at in range(12)}
    assert list(open_model(site(tmp_path / "a"), RecordDict({"arrays": to_dense(layers)}))[1]) == list(layers)
    swapped = {name: layers[name] for name in ("0", "2", "1", *list(layers)[3:])}
    for odd in (swapped, dict(sorted(layers.items())), {name: layers[name] for name in list(layers)[1:]}):
        with pytest.raises(WireError, match="order of their numbers"):
            open_model(site(tmp_path / "b"), RecordDict({"arrays": to_dense(odd)}))
