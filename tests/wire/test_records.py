import pytest
import torch
from flwr.app import Array, ArrayRecord

from prunella.core.errors import WireError
from prunella.wire import records

TREE = {"w": torch.tensor([[1.0, 0.0], [3.0, 4.0]]), "s": torch.tensor(2.0)}
MASK = {"w": torch.tensor([[True, False], [True, True]]), "s": torch.tensor(True)}


def test_coded_record_round_trips_and_counts_what_is_sent() -> None:
    record = records.to_coded(TREE, MASK)
    tree, mask = records.from_coded(record, TREE)
    assert torch.equal(tree["w"], TREE["w"]) and torch.equal(mask["w"], MASK["w"])
    assert records.record_bytes(record) == len(records.unpack(record)) > 16
    assert torch.equal(records.mask_from_coded(records.mask_to_coded(MASK), TREE)["w"], MASK["w"])


def test_dense_record_is_what_any_flower_strategy_reads() -> None:
    record = records.to_dense(TREE)
    assert record["w"].numpy().tolist() == TREE["w"].tolist()
    assert all(torch.equal(records.from_dense(record)[n], TREE[n]) for n in TREE)


@pytest.mark.parametrize(
    "record", [ArrayRecord(), records.to_dense(TREE), ArrayRecord({"tree": Array("u1", (1,), "x", b"0")})]
)
def test_another_record_is_refused(record: ArrayRecord) -> None:
    with pytest.raises(WireError) as caught:
        records.unpack(record)
    assert caught.value.reason == "malformed"


def test_a_record_of_an_older_release_is_told_apart() -> None:
    record = ArrayRecord({"tree": Array("uint8", (1,), "prunella.tree.v1", b"0")})
    with pytest.raises(WireError) as caught:
        records.unpack(record)
    assert caught.value.reason == "version"


def test_rounded_records_are_read_like_any_other() -> None:
    tree, _ = records.from_coded(records.to_coded(TREE, MASK, None, "int8"), TREE)
    assert torch.allclose(tree["w"], TREE["w"], atol=4 / 254) and not torch.equal(tree["w"], TREE["w"])
