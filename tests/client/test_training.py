"""What leaves of a round, field by field."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from prunella.client.training import importance_names
from prunella.tasks.task import prunable
from tests.client.test_app import TASK, model, send
from tests.client.test_audit import made

PLAIN = {"defenses": "none", "strategy": "fedavg"}


@pytest.mark.parametrize(
    ("more", "node", "timed"),
    [
        (PLAIN, {}, True),
        ({"defenses": "dp-sgd", "strategy": "fedavg"}, {}, False),
        ({"defenses": "dgp", "strategy": "fedavg"}, {"require": "dgp"}, False),
    ],
)
def test_a_reply_has_these_records_and_no_time_where_it_would_tell_something(
    more: dict[str, Any], node: dict[str, Any], timed: bool, tmp_path: Path
) -> None:
    reply = send(tmp_path, "train", model(1), node, **more).content
    assert set(reply) - {"spoken"} == {"update", "metrics", "provenance", "ledger"}
    assert set(reply["metrics"]) == {"num-examples"} | ({"train-seconds"} if timed else set())
    assert set(reply["provenance"]) == {"round", "mask", "applied", "values"}


def test_importances_are_of_prunable_tensors_in_rounds_in_which_the_scheme_uses_them(tmp_path: Path) -> None:
    names = sorted(prunable(TASK.build()))

    def asked(round: int, wanted: Any, **run: Any) -> frozenset[str]:
        here = made(tmp_path, None, **{"strategy": "prunefl", "prunefl__adjust_interval": 2, **run})
        content = RecordDict({"config": ConfigRecord({"round": round, "importance": wanted})})
        return importance_names(here, content, round)

    assert asked(2, [*names, "no.such.tensor"]) == frozenset(names)
    assert asked(2, names[:1]) == frozenset(names[:1])
    assert not asked(1, names) and not asked(2, []) and not asked(2, "everything")
    assert not asked(2, names, strategy="random")
