import pytest
import torch
from flwr.app import MetricRecord

from prunella.core.errors import AttackError
from prunella.server.audit.answers import MAX_PICTURES, SCORES, STATS, read_pictures, read_scores
from prunella.wire.records import to_dense

GOOD = {f"{score}.{stat}": 0.5 for score in SCORES for stat in STATS} | {"iip": 1.0, "images": 1}


def test_scores_out_of_bounds_are_no_scores() -> None:
    assert read_scores(MetricRecord({**GOOD, "psnr.worst": 100.0, "ami.mean": -0.2}))["psnr"]["worst"] == 100.0
    odd = [1e300, -1e300, 1e9, True, 10**400, float("inf"), "0.5"]
    for name in (*GOOD, "label_accuracy"):
        for value in odd:
            record = MetricRecord(GOOD)
            record._data[name] = value
            with pytest.raises(AttackError, match="bounds"):
                read_scores(record)


def test_pictures_are_read_in_pairs_and_cut_to_their_range() -> None:
    pair = torch.full((2, 1, 8, 8), 1.5)
    assert read_pictures(None, (1, 8, 8)) is None
    found = read_pictures(to_dense({"original": pair, "reconstruction": -pair}), (1, 8, 8))
    assert found is not None and bool((found[0] == 1).all()) and bool((found[1] == 0).all())


@pytest.mark.parametrize(
    ("original", "rebuilt"),
    [((1, 1, 9, 9), (1, 1, 9, 9)), ((2, 1, 8, 8), (1, 1, 8, 8)), ((MAX_PICTURES + 1, 1, 8, 8),) * 2],
)
def test_pictures_of_another_shape_or_number_are_refused(original: tuple[int, ...], rebuilt: tuple[int, ...]) -> None:
    record = to_dense({"original": torch.zeros(original), "reconstruction": torch.zeros(rebuilt)})
    with pytest.raises(AttackError, match="pictures"):
        read_pictures(record, (1, 8, 8))
