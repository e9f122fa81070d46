import pytest
import torch
from flwr.app import Context, RecordDict

from prunella.core.errors import DefenseError
from prunella.flower.answers import check_answer, check_floats, twins
from prunella.flower.site import Site


def test_tied_names_are_found_by_their_values() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    before, after = {"x": a, "y": a, "z": a}, {"x": b, "y": b, "z": a}
    assert twins(["x", "y", "z"], before, after) == {"y": "x"}
    assert twins(["x", "y", "z"], before, after, {"x", "z"}) == {"y": "x"}
    assert twins(["x", "y", "z"], before, after, {"x", "y"}) == {}, "equal by chance"


def test_what_no_defense_works_on_is_refused_and_no_shape_is_told(tmp_path) -> None:
    site = Site(Context(1, 1, {"state-dir": str(tmp_path)}, RecordDict(), {"defenses": "dgp"}), "train")
    before = {"w": torch.ones(2), "count": torch.tensor([1])}
    assert check_answer(site, {"w": torch.zeros(2), "count": torch.tensor([1])}, before) == ["w"]
    odd = {
        "shape": {**before, "w": torch.ones(3)},
        "names": {"w": before["w"]},
        "int64": {**before, "count": 2 * before["count"]},
    }
    for words, after in odd.items():
        with pytest.raises(DefenseError, match=words) as refused:
            check_answer(site, after, before)
        assert "3" not in str(refused.value), "a last layer's rows are this site's classes"


def test_a_message_without_a_weight_is_refused() -> None:
    for none in ({}, {"0": torch.zeros(0, dtype=torch.uint8)}):
        with pytest.raises(DefenseError, match="boosted trees: leave Defend out"):
            check_floats(none)
    check_floats({"0": torch.zeros(0, dtype=torch.uint8), "w": torch.zeros(1, dtype=torch.float16)})
