"""Inside server/ imports point down too: store; audit and report; then the rest. Readers import no writer."""

from pathlib import Path

import pytest

from tests.test_layout import ROOT, imports

SERVER = ROOT / "server"
FLOORS = {"store": 0, "audit": 1, "report": 1}
TOP = 2  # of all others, which may import any of these
READERS = [*(SERVER / "report").glob("*.py"), SERVER / "exporter.py", *(ROOT / "deploy" / "tools").glob("*.py")]


@pytest.mark.parametrize(
    "path",
    sorted(path for here in FLOORS for path in (SERVER / here).rglob("*.py")),
    ids=lambda p: str(p.relative_to(SERVER)),
)
def test_imports_inside_the_server_point_down(path: Path) -> None:
    here = path.relative_to(SERVER).parts[0]
    for name in imports(path):
        room, *inside = name.split(".")
        if room == "server" and inside and inside[0] != here:
            assert FLOORS.get(inside[0], TOP) < FLOORS[here], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted(READERS), ids=lambda p: str(p.relative_to(ROOT)))
def test_who_only_reads_a_run_imports_no_writer(path: Path) -> None:
    assert "server.store.write" not in imports(path)
