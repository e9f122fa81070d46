"""Every attack of this folder loses against this release, and wins against a build with that promise taken out."""

from pathlib import Path

import pytest

from tests.redteam import audit_oracle, brute_force, epsilon_by_resolution, pixel_oracle, two_answers

BITS = 18  # the search of all 32 is for the command line; the build that loses here has no more
MIDDLE = range(24, 40)  # pixels of 64, for a picture takes 128 audits


def test_a_seed_that_a_generator_cuts_short_is_found(tmp_path: Path) -> None:
    seed, likeness = brute_force.attack(tmp_path, BITS, broken=True)
    assert seed is not None and likeness > 40


def test_no_seed_explains_the_noise(tmp_path: Path) -> None:
    seed, likeness = brute_force.attack(tmp_path, BITS, broken=False)
    assert seed is None and likeness < 15


def test_overflows_tell_pixels_where_the_charge_comes_late(tmp_path: Path) -> None:
    likeness, questions, charges = pixel_oracle.attack(tmp_path, broken=True, pixels=8)
    assert likeness > 40 and questions > 30 and charges == 0


def test_overflows_tell_nothing_and_every_question_is_charged(tmp_path: Path) -> None:
    likeness, questions, charges = pixel_oracle.attack(tmp_path, broken=False, pixels=8)
    assert likeness < 15 and charges == questions


def test_answers_share_noise_under_a_thin_digest(tmp_path: Path) -> None:
    shared, likeness = two_answers.attack(tmp_path, broken=True)
    assert shared == list(two_answers.PAIRS) and likeness > 0.98


def test_no_two_questions_share_noise(tmp_path: Path) -> None:
    shared, likeness = two_answers.attack(tmp_path, broken=False)
    assert shared == [] and likeness < 0.95


def test_an_account_of_pixels_gives_every_size_a_budget(tmp_path: Path) -> None:
    found = epsilon_by_resolution.attack(tmp_path, broken=True)
    assert found[0] > 0 and set(found) == {found[0]}


def test_all_sizes_share_one_budget(tmp_path: Path) -> None:
    found = epsilon_by_resolution.attack(tmp_path, broken=False)
    assert found[0] > 0 and not any(found[1:])


def test_free_scores_rebuild_a_picture(tmp_path: Path) -> None:
    likeness, answered = audit_oracle.attack(tmp_path, broken=True, consent="numbers", pixels=MIDDLE)
    assert likeness > 40 and answered == 2 * len(MIDDLE)


@pytest.mark.parametrize("consent", ["scores", "numbers"])
def test_rationed_words_and_numbers_do_not(tmp_path: Path, consent: str) -> None:
    likeness, answered = audit_oracle.attack(tmp_path, broken=False, consent=consent, pixels=MIDDLE)
    assert likeness < 20 and answered == 2 * len(MIDDLE)


def test_a_client_that_denies_answers_nothing(tmp_path: Path) -> None:
    assert audit_oracle.attack(tmp_path, broken=False, consent="deny", pixels=MIDDLE)[1] == 0
