"""Which tests ``make newest`` runs."""

from pathlib import Path

from tests.changed import ROOT
from tests.of_flower import modules_of_flower, touching


def test_modules_that_import_flower_or_start_its_commands_are_known() -> None:
    assert {"prunella.wire.records", "prunella.deploy.runtime.zygote", "tests.local_grid"} <= modules_of_flower()
    assert not {"prunella.core.trees", "prunella.client.planted"} & modules_of_flower()


def test_of_a_room_those_that_touch_it_are_found_and_no_others() -> None:
    places = [
        "tests/client",
        "tests/flower",
        "tests/federation/test_policy.py",
        "tests/wire/test_records.py",
        "tests/core",
    ]
    found = touching(places)
    touch = {"tests/client/test_app.py", "tests/federation/test_policy.py", "tests/wire/test_records.py"}
    assert touch <= set(found)
    other = {"tests/client/test_planted.py", "tests/core/test_trees.py", "tests/flower/test_another_device.py"}
    assert not other & set(found) and all((ROOT / name).is_file() for name in other)
    assert all((ROOT / name).is_file() and Path(name).name.startswith("test_") for name in found)
