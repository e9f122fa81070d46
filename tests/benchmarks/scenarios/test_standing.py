"""The board's page: the strongest attack by all seeds and images, what was not measured, and the front."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.engine.results import from_json
from prunella.benchmarks.scenarios import standing
from prunella.benchmarks.scenarios.board import BOARD, DEFENSES

STORED = Path(__file__).parents[3] / "docs" / "results"


def attacked(chain: str, attack: str, *seeds: tuple[float, ...], control: bool = True) -> Point:
    images = {f"psnr.{i}": values for i, values in enumerate(zip(*seeds, strict=True))}
    means = {"psnr": tuple(sum(seed) / len(seed) for seed in seeds), "rebuilt": tuple(0.5 for _ in seeds)}
    return Point(("one-image", "cifar10", chain, attack), {**means, **images}, control)


def paid(chain: str, accuracy: float, **more: float) -> Point:
    values = {
        "accuracy": (accuracy, accuracy + 0.02),
        "megabytes_up": (5.0, 5.0),
        **{k: (v, v) for k, v in more.items()},
    }
    return Point(("costs", "cifar10", chain, "training"), values)


POINTS = [
    attacked("none", "matching", (100.0, 90.0), (80.0, 100.0)),
    attacked("none", "class mean", (12.0, 13.0), (12.0, 13.0)),
    attacked("noise", "matching", (40.0, 4.0), (4.0, 4.0)),
    attacked("noise", "inverter", (20.0, 20.0), (20.0, 20.0), control=False),
    paid("none", 0.8),
    paid("noise", 0.6, epsilon=1.5),
    paid("dear", 0.5),
]


def test_an_entry_is_the_attack_with_the_highest_mean_and_stops_at_sixty() -> None:
    best = standing.strongest(POINTS)
    assert best.keys() == {("one-image", "none"), ("one-image", "noise")}
    assert best["one-image", "noise"].attack == "inverter" and best["one-image", "noise"].mean == 20
    assert best["one-image", "none"].mean == 60 and best["one-image", "none"].interval == (60, 60)


def test_of_two_that_are_as_good_it_is_the_one_whose_answers_the_other_handed_on() -> None:
    same = [attacked("noise", name, (30.0, 20.0)) for name in ("inverter", "matching")]
    assert standing.strongest(same)["one-image", "noise"].attack == "matching"


def test_one_lucky_image_is_not_hundreds_of_decibels() -> None:
    lucky = attacked("noise", "matching", (100.0, 5.0), (5.0, 5.0))
    assert standing.strongest([*POINTS, lucky])["one-image", "noise"].attack == "inverter"


def test_the_tables_say_what_failed_and_what_was_not_measured() -> None:
    text = standing.table([*POINTS, Point(("trained", "mnist", "none", "matching"), POINTS[0].values)])
    assert "20** [20, 20] 50% inverter, control failed" in text and "| noise |" in text
    assert text.count("not measured") == 1 and "| *class mean, no update* | 12 |" in text
    assert "| cifar10 | noise | 0.610 ± 0.014 | 20.0 [20.0, 20.0] | 5.0 ± 0.0 |  |  | 1.5 ± 0.0 |" in text
    assert "| cifar10 | none | 0.810 ± 0.014 |  | 5.0 ± 0.0 |" in text


def test_what_a_chain_costs_is_told_beside_the_same_seeds_and_with_what_they_do_not_tell() -> None:
    plain = Point((), {"accuracy": (0.90, 0.80, 0.85)}, seeds=(0, 1, 2))
    dear = Point((), {"accuracy": (0.88, 0.79, 0.82)}, seeds=(0, 1, 2))
    assert standing.lost(dear, plain) == "2.0 [-0.5, 4.5]"  # 2, 1 and 3 points: 2 ± 4.30 / sqrt(3)
    assert standing.lost(replace(dear, seeds=(0, 1, 3)), plain) == "1.5 [-4.9, 7.9] (2 seeds)"
    assert standing.lost(replace(dear, seeds=(3, 4, 5)), plain) == standing.lost(plain, plain) == ""
    assert standing.lost(replace(dear, seeds=(0, 1, 2, 3)), plain) == ""  # one withheld every update
    one, other = (Point((), {"accuracy": (value,)}, seeds=(0,)) for value in (0.8, 0.9))
    assert standing.lost(one, other) == "10.0"


def test_an_accuracy_of_the_runs_that_did_not_fail_is_no_price() -> None:
    silent = Point(("costs", "mnist", "quiet", "training"), {"withheld": (1.0, 0.0), "time": (5.0, 5.0)})
    assert "| mnist | quiet | withheld, 1 of 2 runs |" in standing.table([*POINTS, silent])


def test_a_client_that_sends_nothing_is_no_defense_that_holds() -> None:
    silent, some = (attacked("noise", "matching", (12.0, 12.0)) for _ in range(2))
    for point, share in ((silent, 0.0), (some, 0.5)):
        point.values["sent"] = (share,)  # type: ignore[index]
    assert standing.strongest([silent])["one-image", "noise"].text == "nothing was sent"
    assert standing.strongest([some])["one-image", "noise"].text.startswith("**12**")


def test_no_share_that_is_printed_is_below_that_of_another_attack() -> None:
    best, other = (attacked("noise", name, (db, db)) for name, db in (("inverter", 13.0), ("matching", 12.0)))
    other.values["rebuilt"] = (1.0,)  # type: ignore[index]
    text = standing.strongest([best, other])["one-image", "noise"].text
    assert text == "**13** [13, 13] inverter, 100% matching"


def test_seeds_in_which_nothing_was_sent_are_not_of_the_mean() -> None:
    point = attacked("noise", "matching", (40.0, 40.0), (12.0, 12.0))
    point.values["sent"] = (1.0, 0.0)  # type: ignore[index]
    assert standing.strongest([point])["one-image", "noise"].text == "**40** [40, 40] 50% matching, 50% sent"


def test_the_stored_boards_print_the_largest_share() -> None:
    for claim in (BOARD, DEFENSES):
        points = from_json(json.loads((STORED / f"{claim.name}.json").read_text()), claim).points
        for (scenario, chain), best in standing.strongest(points).items():
            same = [p for p in points if (p.label[0], p.label[2]) == (scenario, chain) and p.label[3] != "class mean"]
            most = max((p.mean("rebuilt") for p in same if all(p.values.get("sent", ()))), default=0.0)
            assert best.counted.mean("rebuilt") >= most - 1e-9


def test_the_front_has_what_nothing_beats() -> None:
    places = {"none": (60.0, 0.9), "good": (12.0, 0.8), "twin": (12.0, 0.8), "bad": (30.0, 0.7)}
    assert standing.front(places) == ["good", "twin", "none"]


@pytest.mark.parametrize("points", [POINTS, POINTS[:2], POINTS[4:]])
def test_a_picture_of_a_part_is_a_picture(points: list[Point], tmp_path: Path) -> None:
    standing.draw(points, tmp_path / "board.png")
    assert (tmp_path / "board.png").read_bytes()[:4] == b"\x89PNG"
    standing.draw(points, tmp_path / "a.svg")
    standing.draw(points, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_a_federation_the_leak_of_every_chain_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(standing, "save", lambda figure, *_: drawn.append(figure))
    other = replace(POINTS[2], label=("one-digit", "mnist", "noise", "matching"))
    standing.draw([*POINTS[:4], other], tmp_path / "board.png")
    image, digit = drawn[0].axes
    assert [axes.get_title() for axes in (image, digit)] == ["one-image", "one-digit"]
    assert [text.get_text() for text in image.get_yticklabels()] == ["none", "noise"]
    marks = [float(line.get_xdata()[0]) for line in image.lines if line.get_marker() == "o"]
    assert marks == [best.mean for best in standing.strongest(POINTS[:4]).values()]
    assert [text.get_text() for text in digit.texts] == ["not measured"] and not image.texts
    assert any(line.get_label() == "class mean, no update" for line in image.lines)
