import pytest
import torch
from flwr.app import MetricRecord

from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import level
from prunella.core.errors import AttackError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.audit.answers import (
    BESIDE_GALLERY,
    MAX_PICTURES,
    RECOGNITION,
    SCORES,
    STATS,
    read_pictures,
    read_scores,
)
from prunella.tasks.examples import Examples
from prunella.wire.records import flatten, to_dense

GOOD = {f"{score}.{stat}": 0.5 for score in SCORES for stat in STATS} | {"iip": 1.0, "images": 1}
BESIDE = GOOD | dict.fromkeys(BESIDE_GALLERY, 0.5) | {f"recognition.{name}": 1 for name in RECOGNITION}


def test_scores_out_of_bounds_are_no_scores() -> None:
    assert read_scores(MetricRecord({**GOOD, "psnr.worst": 100.0, "ami.mean": -0.2}))["psnr"]["worst"] == 100.0
    odd = [1e300, -1e300, 1e9, True, 10**400, float("inf"), "0.5"]
    for name in (*BESIDE, "label_accuracy", "label_chance"):
        for value in odd:
            record = MetricRecord(BESIDE)
            record._data[name] = value
            with pytest.raises(AttackError, match="bounds"):
                read_scores(record)


def test_what_stands_beside_a_gallery_comes_whole_or_not_at_all() -> None:
    found = read_scores(MetricRecord({**BESIDE, "label_accuracy": 1.0, "label_chance": 0.1}))
    assert found["psnr"]["blind"] == 0.5 and found["recognition"]["hits"] == 1 and found["label_chance"] == 0.1
    assert read_scores(MetricRecord({**BESIDE, "iip_random": 0.4, "iip_other": 0.5}))["iip_other"] == 0.5
    plain = read_scores(MetricRecord(GOOD))
    assert plain["recognition"] is plain["label_chance"] is None and "blind" not in plain["psnr"]
    for name in BESIDE_GALLERY:
        for record in ({k: v for k, v in BESIDE.items() if k != name}, GOOD | {name: BESIDE[name]}):
            with pytest.raises(AttackError, match="missing or unexpected"):
                read_scores(MetricRecord(record))
    for extra in ("label_chance", "iip_other", "pixel.0", "ncc.median"):
        with pytest.raises(AttackError, match="missing or unexpected"):
            read_scores(MetricRecord(GOOD | {extra: 0.5}))


def test_what_scoring_gives_is_what_is_read() -> None:
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    others = Examples(torch.rand(60, 1, 8, 8), torch.arange(60) % 2)
    for gallery, images in ((None, 2), (others, 2), (None, 1)):
        answer, truth = Reconstruction(x[:images] * 0.5, y[:images], 0.0, 1), PrivateBatch(x[:images], y[:images])
        told = score(answer, truth, gallery=gallery).to_dict()
        read = read_scores(MetricRecord(flatten(told)))
        assert flatten(read) == flatten(told) and level({"scores": read}) == level({"scores": told})


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
