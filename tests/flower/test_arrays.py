"""Coded records of a foreign app's arrays: exact, and strict about names and shapes."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from prunella.core.errors import WireError
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, subtract
from prunella.flower.arrays import (
    EXACT,
    MARK,
    REST,
    Shapes,
    close_answer,
    close_record,
    floats,
    is_coded,
    open_answer,
    open_record,
)
from prunella.tasks.task import Task, initial
from prunella.wire.records import record_bytes, to_coded, to_dense


def close(name: str, after: Tree, before: Tree, mask: Mask) -> RecordDict:
    """As trained under the mask it was sent under, and of which nothing was shared for sure."""
    return close_answer(name, after, before, mask, mask, {})


def model() -> Tree:
    draws = torch.Generator().manual_seed(0)
    return {
        "w": torch.randn(6, 5, generator=draws),
        "half": torch.randn(4, generator=draws).half(),
        "count": torch.tensor(3),
        "double": torch.randn((), generator=draws, dtype=torch.float64),
    }


def test_a_model_comes_back_in_order_and_bit_for_bit_under_its_mask() -> None:
    tree = model()
    mask = full_mask(floats(tree))
    mask["w"][::2] = False
    coded, rest = close_record(tree, mask)
    content = RecordDict({"arrays": coded, REST: rest})
    assert is_coded(content) and not is_coded(RecordDict({"arrays": to_dense(tree)}))
    found, kept = open_record(content, Shapes.of(tree))
    assert list(found) == list(tree) and torch.equal(kept["w"], mask["w"])
    assert torch.equal(found["w"], torch.where(mask["w"], tree["w"], 0.0))
    for name in ("half", "count", "double"):
        assert torch.equal(found[name], tree[name]) and found[name].dtype == tree[name].dtype


def test_an_answer_has_only_what_changed_and_arrives_bit_for_bit() -> None:
    before = model()
    after = {**before, "w": before["w"].clone(), "count": torch.tensor(4)}
    after["w"][0, 0] += 1e-3
    after["w"][1, 1] = -0.0
    answer = close("arrays", after, before, full_mask(floats(before)))
    found = open_answer(answer, before, full_mask(floats(before)))
    for name, tensor in after.items():
        assert torch.equal(found[name], tensor)
    assert torch.signbit(found["w"][1, 1])
    more = close("arrays", {**after, "w": before["w"] + 1}, before, full_mask(floats(before)))
    sizes = [len(record["arrays"]["tree"].data) for record in (answer, more)]
    assert sizes[0] < sizes[1] - 60


@pytest.mark.parametrize("name", ["lenet", "cnn", "resnet18"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_both_ways_a_tree_takes_the_bytes_of_our_own_messages(name: str, rate: float, share: float) -> None:
    """Our own server and client are the oracle: ``to_coded`` of the same weights, update and mask. ``share`` of the
    kept weights leaves, as behind DGP."""
    task, draws = Task(name, (3, 32, 32), 10), torch.Generator().manual_seed(0)
    drawn, buffers = initial(task, 0)
    mask = {n: torch.rand(t.shape, generator=draws) >= rate for n, t in drawn.items()}
    before = apply_mask(drawn, mask)
    shared = {n: m & (torch.rand(m.shape, generator=draws) < share) for n, m in mask.items()}
    # Weights of training, of which few are so small that a difference would round.
    moved = {n: t + 1e-3 * torch.randn(t.shape, generator=draws) for n, t in before.items()}
    after = {n: torch.where(shared[n], t, before[n]) for n, t in moved.items()}
    coded, rest = close_record({**before, **buffers}, mask, mask)
    assert rest.keys() == buffers.keys() and record_bytes(coded) == record_bytes(to_coded(before, mask, mask))
    answer = close_answer("arrays", after, before, mask, mask, shared)
    own = record_bytes(to_coded(apply_mask(subtract(after, before), shared), shared, mask))
    sizes = {n: record_bytes(record) for n, record in answer.array_records.items()}
    exact = sizes.pop(EXACT, 0)
    assert set(sizes) == {"arrays"} and 0.99 * own <= sizes["arrays"] <= 1.01 * own, (sizes, own)
    assert exact < 0.1 * own, (exact, own)


def test_a_difference_that_would_round_is_no_difference() -> None:
    """Weights that shrink to a thousandth: before + (after - before) is another number in most places."""
    draws = torch.Generator().manual_seed(2)
    before = {"w": torch.randn(1000, generator=draws), "half": torch.randn(99, generator=draws).half()}
    after = {"w": before["w"] + 1e-3, "half": before["half"] * 1e-2}
    near = {name: tensor.clone() for name, tensor in before.items()}
    near["w"] = (before["w"].double() * 1.001).float()
    near["w"][0] = torch.finfo(torch.float32).max
    after["w"][:500] = torch.randn(500, generator=draws) * 1e-3
    for answer, odd in ((after, True), (near, False)):
        sent = close("arrays", answer, before, full_mask(before))
        assert (EXACT in sent) == odd
        found = open_answer(sent, before, full_mask(before))
        assert all(torch.equal(found[name], answer[name]) for name in answer)


def test_an_array_that_changed_its_type_lies_beside() -> None:
    """Averaging makes a float of batch norm's counter, and the app answers with an integer."""
    before = {"w": torch.zeros(3), "count": torch.tensor(1.5, dtype=torch.float64)}
    after = {"w": torch.ones(3), "count": torch.tensor(2)}
    found = open_answer(close("arrays", after, before, full_mask(before)), before, full_mask(before))
    assert found["count"].dtype == torch.int64 and int(found["count"]) == 2 and bool((found["w"] == 1).all())


def test_an_answer_is_coded_in_its_own_type() -> None:
    before = {"w": torch.randn(50, generator=torch.Generator().manual_seed(1)).double() / 3}
    after = {"w": before["w"].float()}
    after["w"][:5] += 1
    answer = close("arrays", after, before, full_mask(before))
    found = open_answer(answer, before, full_mask(before))
    assert found["w"].dtype == torch.float32 and torch.equal(found["w"], after["w"])
    assert len(answer["arrays"]["tree"].data) < 120, "five values"


def test_a_stranger_s_answer_is_checked() -> None:
    before = model()
    mask = full_mask(floats(before))
    good = close("arrays", before, before, mask)
    for spoil in (
        lambda r: r.__setitem__(REST, ArrayRecord({})),
        lambda r: r.__setitem__(REST, to_dense({"count": torch.zeros(2)})),
        lambda r: r.__setitem__(REST, to_dense({"count": torch.zeros(()), "other": torch.zeros(1)})),
        lambda r: r.__setitem__("more", ArrayRecord({})),
        lambda r: r.__setitem__(MARK, ConfigRecord({"cast": ["float32 nothing"]})),
        lambda r: r.__setitem__(MARK, ConfigRecord({"cast": ["complex64 w"]})),
        lambda r: r.__setitem__(MARK, ConfigRecord({"cast": ["float16 w"]})),
        lambda r: r.pop("arrays"),
    ):
        content = RecordDict(dict(good))
        spoil(content)
        with pytest.raises(WireError):
            open_answer(content, before, mask)
