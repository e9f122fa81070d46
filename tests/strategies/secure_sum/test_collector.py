"""What the server makes of replies to a masked sum that do not fit; whole sums are in ``test_exchange``."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message

from prunella.strategies.secure_sum.collector import moved
from tests.strategies.secure_sum.federated import go, lost


def changed(what: str, reply: Message) -> None:
    """Spoil the masked update of client 1."""
    if reply.metadata.message_type != "train" or reply.metadata.src_node_id != 101:
        return
    record = reply.content.config_records["provenance"]
    if what == "round":
        record["round"] = 7
    elif what == "defenses":
        record["applied"] = ["dgp"]
    elif what == "length":
        array = reply.content.array_records["masked"]["masked"]
        array.data = array.data[:-1]
    else:
        del reply.content["masked"]


@pytest.mark.parametrize(
    ("what", "reason"), [("round", "stale"), ("defenses", "metrics"), ("length", "size"), ("words", "malformed")]
)
def test_a_reply_that_does_not_fit_is_a_dropout(tmp_path: Path, what: str, reason: str) -> None:
    federation, _ = go(tmp_path, tamper=lambda reply: changed(what, reply))
    assert federation.strategy.stats.replies == 3 and federation.counters[f"client_failures_total|{reason}"] == 1


def test_a_client_that_adds_nonsense_spoils_the_round_and_it_is_noticed(tmp_path: Path) -> None:
    def nonsense(reply: Message) -> None:
        if reply.metadata.message_type == "train" and reply.metadata.src_node_id == 101:
            array = reply.content.array_records["masked"]["masked"]
            array.data = bytes(len(array.data))

    federation, _ = go(tmp_path, tamper=nonsense)
    assert federation.strategy.stats.replies == 0 and federation.counters["client_failures_total|size"] == 1
    assert federation.counters["rounds_void_total"] == 1


def test_of_a_sum_nobody_saw_what_was_withheld_nor_how_long_training_took(tmp_path: Path) -> None:
    federation, _ = go(tmp_path)
    assert federation.strategy.stats.replies == 4 and federation.counters["rounds_void_total"] == 0
    assert not {"train_seconds", "defense_rate_ratio"} & {line["metric"] for line in federation.store.metrics()}


def test_a_mean_moves_weights_in_their_type_and_counts_to_whole_numbers() -> None:
    by = torch.tensor([0.25, 1.6], dtype=torch.float64)
    assert moved(torch.tensor([1.0, 2.0]), by).tolist() == pytest.approx([1.25, 3.6])
    counted = moved(torch.tensor([1, 2]), by)
    assert counted.dtype == torch.int64 and counted.tolist() == [1, 4]


def test_the_opened_sum_says_whose_updates_are_in_it_and_no_client_s_count(tmp_path: Path) -> None:
    federation, _ = go(tmp_path, lost("train", 2), secure_sum__examples=100)
    opened = federation.strategy.opened
    assert opened is not None and opened.clients == (0, 1, 3) and opened.examples == 300
    federation, _ = go(tmp_path / "few", lost("train", 1, 2))
    assert federation.strategy.opened is None
