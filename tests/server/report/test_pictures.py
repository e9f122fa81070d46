import base64
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.server.report.pictures import IMAGES, SIDE, STRIPS, choose, load, png, strip
from prunella.server.store.schema import StoreError


def audit(**changes: Any) -> dict[str, Any]:
    base = {"round": 5, "kind": "client", "client": 3, "attack": "sgi", "defense": "dgp", "pictures": "pictures/a.st"}
    return base | {"scores": None} | changes


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))


def images(count: int = 3, channels: int = 1, side: int = 8) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=stream(0, purpose="test"))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_keeps_every_pixel(channels: int) -> None:
    image = images(1, channels)[0]
    shown = torch.tensor(list(opened(png(image)).tobytes())).reshape(8, 8, channels).permute(2, 0, 1)
    assert torch.equal(shown, (image * 255).round().long())


def test_a_large_picture_is_scaled_down() -> None:
    assert max(opened(png(torch.rand(3, 500, 250))).size) == SIDE


def test_a_strip_shows_the_best_rebuilt_first_and_says_what_is_left(tmp_path: Path) -> None:
    original = images(IMAGES + 3)
    noise = torch.linspace(0.5, 0.01, len(original)).reshape(-1, 1, 1, 1)
    write_tree(tmp_path / "pictures/a.st", {"original": original, "reconstruction": (original + noise).clamp(0, 1)})
    made = strip(tmp_path, audit())
    assert strip(tmp_path, audit(scores={"images": 64})).left == 64 - IMAGES, "a client may return fewer than it scored"
    levels = [float(pair.psnr.split("\u202f")[0]) for pair in made.pairs]
    assert len(made.pairs) == IMAGES and made.left == 3 and levels == sorted(levels, reverse=True)
    assert made.title == "Client 3" and not made.problem


def test_a_perfect_copy_has_finite_scores(tmp_path: Path) -> None:
    write_tree(tmp_path / "pictures/a.st", {"original": images(1), "reconstruction": images(1)})
    assert strip(tmp_path, audit()).pairs[0].words == "PSNR 100.0\u202fdB, SSIM 1.00"


def test_a_path_out_of_the_run_is_not_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_tree(tmp_path / "secret.st", {"original": images(), "reconstruction": images()})
    (run / "link.st").symlink_to(tmp_path / "secret.st")
    for path in ("../secret.st", str(tmp_path / "secret.st"), "link.st"):
        with pytest.raises(StoreError, match="outside"):
            load(run, path)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (None, "missing"),
        ({"original": images()}, "one shape"),
        ({"original": images(3), "reconstruction": images(2)}, "one shape"),
        ({"original": images()[0], "reconstruction": images()[0]}, "one shape"),
        ({"original": images(3, 2), "reconstruction": images(3, 2)}, "grey or colour"),
        ({"original": images(), "reconstruction": images() * torch.nan}, "not finite"),
    ],
)
def test_every_problem_becomes_a_sentence(tmp_path: Path, tree: dict[str, torch.Tensor] | None, words: str) -> None:
    if tree is not None:
        write_tree(tmp_path / "pictures/a.st", tree)
    made = strip(tmp_path, audit())
    assert words in made.problem and not made.pairs


def test_a_file_that_is_no_safetensors_is_said(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.st").write_bytes(b"not a tensor")
    assert "cannot be read" in strip(tmp_path, audit()).problem


def test_the_worst_of_each_kind_are_chosen_and_on_the_live_page_the_latest() -> None:
    def scored(worst: float) -> dict[str, Any]:
        return {"psnr": {"worst": worst, "random": 5.0, "other": 9.0}}

    clients = [audit(round=r, scores=scored(float(r))) for r in range(1, 40)]
    kinds = ("control", "control-defended", "single-defended")
    controls = [audit(kind=kind, round=r, scores=scored(30.0 - r)) for r in (1, 9) for kind in kinds]
    audits = [*clients[::-1], *controls, audit(pictures=None, scores=scored(99.0))]
    for each in audits:
        each["outcome"] = "scored"
    for latest, rounds in ((False, (1, 1, 1, 39)), (True, (9, 9, 9, 1))):
        shown = choose(audits, latest=latest)
        assert [(a["kind"], a["round"]) for a in shown[:4]] == list(zip((*kinds, "client"), rounds, strict=True))
        assert len(shown) == STRIPS
