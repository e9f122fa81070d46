"""Flower's own FedAvg ends where ours does, and the comparison would see it if it did not."""

import json
from pathlib import Path

import pytest

from prunella.benchmarks.speed import flower_fedavg as bench
from prunella.client.session import Session

RUN = {"dataset": "digits", "model": "cnn", "rounds": 2, "local_steps": 3}


def test_both_train_the_same_model_to_the_last_digits(capsys: pytest.CaptureFixture[str]) -> None:
    before = Session.batches
    found = json.loads(json.dumps(bench.compare(1, **RUN)))
    assert Session.batches is before
    assert len(found["ours"]) == len(found["flower"]) == len(found["equal"]) == 2
    assert found["of_largest"] < 1e-5 and found["examples"] <= 2
    assert found["ours"] == pytest.approx(found["flower"], abs=2 / found["tested"])
    bench.show({**RUN, "seeds": [found]})
    assert "digits, cnn" in capsys.readouterr().out


@pytest.mark.parametrize("spoiled", ["batches", "sizes"])
def test_another_batch_or_weight_is_seen(spoiled: str, tmp_path: Path) -> None:
    federation, mine, noted = bench.ours(tmp_path / "ours", 1, **RUN)
    assert noted.batches.keys() == set(range(bench.CLIENTS)) and len(noted.batches[0][0]) == 3
    assert len(set(noted.sizes.values())) > 1
    if spoiled == "batches":
        noted.batches[0][0].pop()
    else:
        noted.sizes[0] *= 2
    theirs = bench.flowers(tmp_path / "flower", federation, noted)
    assert max(float((mine[-1][name] - theirs[-1][name]).abs().max()) for name in mine[-1]) > 1e-4
