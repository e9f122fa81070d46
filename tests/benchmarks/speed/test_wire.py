import json
from pathlib import Path

import pytest
import torch

from prunella.benchmarks.speed import wire
from prunella.benchmarks.speed.updates import Update, examples, real_update
from prunella.benchmarks.speed.wire import bound, compare, gaussian, measure
from tests.benchmarks.speed.test_updates import QUICK


def test_the_bound_is_the_entropy_of_the_mask_and_four_bytes_a_value() -> None:
    assert bound(20, 100) == pytest.approx(100 * 0.7219280948873623 / 8 + 80)
    assert bound(100, 100) == 400 and bound(1, 2) == 4.25


def test_bytes_are_those_of_the_blob_and_a_held_mask_is_not_sent_again() -> None:
    images, _ = examples(None, 1)
    result = measure(real_update("vgg-4", "magnitude", images, QUICK), 1)
    assert result["int8"] < result["float16"] < result["bytes"] < result["dense"] / 4
    assert result["later"] < result["bytes"] < 0.83 * result["bound"]
    assert result["of_bound"] == result["bytes"] / result["bound"]


def test_a_round_trip_that_is_not_exact_is_no_result() -> None:
    like = {"w": torch.zeros(100)}
    update = gaussian(like, 0.5, 1)
    assert 0.3 < measure(update, 1)["kept"] < 0.7
    with pytest.raises(ValueError, match="not exact"):
        measure(Update(update.base, {"w": torch.ones(100)}, update.shared), 1)  # values outside their mask


def test_json_is_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["wire", "--models", "cnn", "--repeat", "1", "--json"])
    monkeypatch.setattr(wire, "DATA", tmp_path / "missing")
    wire.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["updates"]) == {"cnn magnitude", "cnn dgp", "cnn gaussian"}
    assert compare(["cnn"], None, QUICK, 1)["images"] == "synthetic"
