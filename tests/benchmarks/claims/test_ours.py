"""Claims of this file are listed, and those that do not run say what is missing."""

from benchmarks.claims import CLAIMS
from benchmarks.claims.ours import CLAIMS as DECLARED


def test_they_are_in_the_list_and_say_what_is_missing() -> None:
    assert DECLARED and all(CLAIMS[claim.name] is claim for claim in DECLARED)
    assert all(claim.missing for claim in DECLARED if claim.experiment is None)
