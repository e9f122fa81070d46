"""Every claim and table under its own name, once."""

from prunella.benchmarks.registry import CLAIMS, PAPERS, TABLES


def test_names_are_those_of_the_claims_and_no_two_are_alike() -> None:
    every = [claim.name for paper in PAPERS for claim in paper.CLAIMS] + [table.name for table in TABLES.values()]
    assert len({name.casefold() for name in every}) == len(every) == len(CLAIMS) + len(TABLES)
    assert all(name == claim.name for name, claim in {**CLAIMS, **TABLES}.items()) and "board" in TABLES
