"""What many audits recognise by chance is no leak, and what they recognise together is one."""

from typing import Any

import numpy as np
from scipy.stats import beta

from prunella.attacks.score.level import level
from prunella.server.report.evidence import valid_audits
from prunella.server.report.many import together
from tests.server.report.audits import NOTHING, audit

KINDS = ("client", "control-defended", "single-defended")
CLASSES = 0.02  # chance of one original: fifty pictures to choose from


def recognised(hits: int, images: int, kind: str = "client", **changes: Any) -> dict[str, Any]:
    """A line whose one evidence is how many originals were told from their look-alikes."""
    low = float(beta.ppf(0.05, hits, images - hits + 1)) if hits else 0.0
    found = {"hits": hits, "images": images, "gallery": 49.0, "chance": CLASSES, "low": low}
    scores = {**NOTHING, "images": images, "recognition": found}
    return audit(kind, scores, **({"level": level({"scores": scores})} | changes))


def leaks(audits: list[dict[str, Any]]) -> list[bool]:
    return [level(a) in ("traces", "rebuilt") for a in together(audits, KINDS)]


def test_of_runs_that_leak_nothing_one_in_twenty_is_accused() -> None:
    draw, accused, by_itself = np.random.default_rng(0), 0, 0
    for _ in range(400):
        hits = draw.binomial(8, CLASSES, size=24)
        run = [recognised(int(h), 8, KINDS[n % 3], round=n // 3 + 1) for n, h in enumerate(hits)]
        by_itself += any(level(a) != "baseline" for a in run)
        accused += any(leaks(run))
    assert by_itself > 0.15 * 400, "nothing to correct"
    assert accused <= 0.05 * 400


def test_what_one_audit_recognises_beyond_doubt_stands_beside_any_number_of_others() -> None:
    run = [recognised(6, 8), *(recognised(0, 8, round=n) for n in range(2, 60))]
    assert leaks(run) == [True] + [False] * 58


def test_a_little_in_every_audit_is_a_leak() -> None:
    run = [recognised(1, 1, round=n) for n in range(1, 6)]
    assert all(leaks(run)) and not any(leaks([run[0], *(recognised(0, 1, round=n) for n in range(2, 9))]))
    weak = [recognised(2, 8, round=n) for n in range(1, 40)]
    assert all(leaks(weak))


def test_what_is_told_of_single_images_or_of_one_client_drowns_in_no_others() -> None:
    single = [recognised(1, 1, round=n) for n in range(1, 7)]
    large = [recognised(1, 64, client=2, round=n) for n in range(1, 7)]
    assert leaks(single + large) == [True] * 6 + [False] * 6
    one = [recognised(2, 8, client=1, round=n) for n in range(1, 7)]
    many = [recognised(0, 8, client=2 + n % 9, round=n) for n in range(1, 99)]
    assert leaks(one + many) == [True] * 6 + [False] * 98
    liar = recognised(0, 10**6, client=3)
    assert leaks([*single, liar]) == [True] * 6 + [False]


def test_one_audit_is_one_question() -> None:
    one = recognised(2, 8)
    assert together([one], KINDS) == [one] and leaks([one]) == [True]


def test_what_cannot_be_asked_again_stands() -> None:
    """A word without numbers; one that says more than its numbers; a defense behind which finding less shows nothing;
    a control, which must find what is there."""
    others = [recognised(0, 8, round=n) for n in range(2, 30)]
    word = audit("client", None, level="traces")
    more = recognised(2, 8, level="rebuilt")
    hidden = [recognised(2, 8, defense=name) for name in ("dgp,ats", "my.defenses:Own")]
    control = recognised(2, 8, "control")
    found = together([word, more, *hidden, control, *others], KINDS)
    assert [level(a) for a in found[:5]] == ["traces", "rebuilt", "traces", "traces", "traces"]
    assert level(together([recognised(2, 8), *others], KINDS)[0]) == "baseline"


def test_a_run_s_audits_are_read_so() -> None:
    stored = {"adaptive": False, "threat": "honest", "seconds": 1.0}
    run = [recognised(2, 8), *(recognised(0, 8, round=n) for n in range(2, 30))]
    valid, damaged = valid_audits([each | stored for each in run])
    assert not damaged and {level(a) for a in valid} == {"baseline"}
