import pytest

from prunella.server.report.membership import members_found, membership_notes
from tests.server.report.audits import audit

SCORE = {"members": 200, "outsiders": 1500, "auc": 0.5, "strict": 0, "loose": 0}


def line(word: str, *scores: dict[str, object], **changes: object) -> dict[str, object]:
    told = {"word": word, "scores": dict(zip(("drop", "local", "model"), scores, strict=False)) or None}
    return audit("membership", outcome="scored", client=3, membership=told, **changes)


def test_one_client_of_which_members_are_found_is_enough() -> None:
    assert members_found([line("not-found"), line("found"), line("unresolved")])
    assert not members_found([line("not-found"), line("unresolved")]) and not members_found([])
    assert not members_found([audit("membership", outcome="failed", membership=None)])
    assert not members_found([audit("client", membership={"word": "found"}, outcome="scored")])


def test_every_figure_is_that_of_the_score_that_finds_most() -> None:
    (note,) = membership_notes([line("found", SCORE | {"auc": 0.6}, SCORE | {"loose": 40}, SCORE | {"strict": 20})])
    assert "outranks one that was not in 60.0\u202f% of pairs (" in note
    assert "at 1.0\u202f% of false alarms 20.0\u202f% of 200" in note
    assert "at 0.1\u202f% of false alarms 10.0\u202f% of 200" in note


@pytest.mark.parametrize(("outsiders", "unresolved"), [(1500, 0), (300, 1), (50, 2)])
def test_a_rate_that_cannot_be_resolved_says_so_and_is_no_zero(outsiders: int, unresolved: int) -> None:
    shares = {"strict": 0 if outsiders >= 1000 else None, "loose": 0 if outsiders >= 100 else None}
    (note,) = membership_notes([line("not-found", SCORE | {"outsiders": outsiders} | shares)])
    assert note.count(f"cannot be resolved with at most {outsiders} outsiders") == unresolved
    assert note.count(" 0.0\u202f% of 200 are caught") == 2 - unresolved


def test_intervals_are_wider_for_the_best_of_several() -> None:
    alone, (best,) = (
        membership_notes([line("found", SCORE | {"loose": 40})])[0],
        membership_notes([line("found", SCORE | {"loose": 40}, SCORE, SCORE)]),
    )
    assert "(14.7\u202f% to" in alone and "(13.7\u202f% to" in best


@pytest.mark.parametrize(("auc", "loose", "clear"), [(0.57, 0, False), (0.65, 0, True), (0.5, 40, True)])
def test_members_that_no_interval_shows_are_found_by_another_test_and_the_note_says_so(
    auc: float, loose: int, clear: bool
) -> None:
    scores = {"members": 128, "outsiders": 716, "auc": auc, "strict": None, "loose": loose}
    for word in ("found", "not-found"):
        (note,) = membership_notes([line(word, scores, SCORE, SCORE)])
        assert ("reaches chance" in note) == (word == "found" and not clear)
