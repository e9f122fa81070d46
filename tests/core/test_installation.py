"""The folders that paths are made from are those of the code that runs."""

from pathlib import Path

from prunella.core.installation import IMPORT_ROOT, ROOMS


def test_the_rooms_and_the_name_are_where_they_are_said_to_be() -> None:
    assert (ROOMS / "core" / "installation.py").is_file() and (IMPORT_ROOT / "prunella" / "__init__.py").is_file()
    assert ROOMS == Path(__file__).resolve().parents[2]  # tests run in a checkout
