"""A site that takes part on its own conditions, over TLS: it trains in a run that meets them and in no other.

One federation, three runs: with the defense the south asks for, without it, and with it but with other code.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prunella.server.store.read import read_run
from tests.federation.running import ROOT, Place, failures, series, wait_for

pytestmark = [pytest.mark.federation, pytest.mark.newest, pytest.mark.timeout(600)]
QUICK = ("-c", "rounds=1", "-c", "strategy=random", "-c", "audit-every=0", "-c", "min-clients=1")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def logs(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*.log")))


def run(place: Place, name: str, clients: int, *options: str) -> Path:
    which = ("--superlink", place.control, "--run-id", name, "--supernodes", str(clients))
    submit = place.start(f"{name}.log", "submit", *which, *QUICK, *options)
    assert submit.wait(240) == 0, place.said(f"{name}.log") + logs(place.folder)[-4000:]
    folder = place.folder / "runs" / name
    assert read_run(folder)["status"] == "completed"
    return folder


def test_a_site_takes_part_on_its_conditions_and_with_its_own_code(place: Place) -> None:
    place.open({"north": (), "south": ("--require", "dgp, dgp.bottom=0.75")})
    together = run(place, "met", 2, "-c", "defenses=dgp")
    assert series(together, "clients_selected") == [2.0] and not failures(together)
    assert "does not take part" not in logs(place.folder)

    without = run(place, "unmet", 1, "-c", "defenses=none")
    assert series(without, "clients_selected") == [1.0] and not failures(without)
    wait_for(lambda: "takes part only with the defenses dgp; the run has none" in logs(place.folder), "the refusal")

    other = place.folder / "other"
    shutil.copytree(
        ROOT, other, ignore=shutil.ignore_patterns(".*", "runs", "docs", "tests", "benchmarks", "*.egg-info")
    )
    with (other / "client" / "policy.py").open("a") as file:
        file.write("\ncheck_run = lambda *_: None\n")
    foreign = run(place, "foreign", 1, "-c", "defenses=dgp", "--app", str(other))
    assert series(foreign, "clients_selected") == [1.0] and not failures(foreign)
    assert "'client/policy.py' of the run's bundle is not in it" in logs(place.folder)
