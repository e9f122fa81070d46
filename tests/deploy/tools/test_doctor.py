"""Each check finds the trouble it is for."""

import io
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from prunella.deploy.tools import doctor
from prunella.deploy.tools.doctor import Check


def test_this_machine_is_fit(tmp_path: Path) -> None:
    """What the other tests rely on; the pair of PyTorch and torchvision is imported in a Python of its own."""
    checks = doctor.examine(None, tmp_path / "runs", "")
    assert not doctor.must_fix(checks), checks
    assert {"flwr", "torch + torchvision", "gpu", "data", "app"} <= {check.name for check in checks}


def test_versions_against_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.41.0")
    found = {check.name: check for check in doctor.packages()}
    assert found["flwr"].state == "bad" and "flwr==1.39.*" in found["flwr"].fix and "flwr==1.42.*" in found["flwr"].fix
    assert found["torch"].state == "ok"

    def missing(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", missing)
    states = {check.name: check.state for check in doctor.packages()}
    assert states == {"flwr": "bad", "torch": "bad", "torchvision": "warn", "scikit-learn": "warn"}
    assert all("pip install" in check.fix for check in doctor.packages())


def test_a_site_that_only_trains_is_fit_without_what_it_does_not_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = doctor.metadata.version

    def few(name: str) -> str:
        if name in doctor.BESIDES:
            raise doctor.metadata.PackageNotFoundError(name)
        return there(name)

    def unread(*_: object) -> None:
        raise doctor.ConfigError("this needs sklearn")

    monkeypatch.setattr(doctor.metadata, "version", few)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr("prunella.tasks.data.load_test", unread)
    checks = doctor.examine(None, tmp_path / "runs", "")
    assert not doctor.must_fix(checks), checks
    assert {check.name for check in checks if check.state == "warn"} == {"torchvision", "scikit-learn", "data"}
    assert doctor.data(None, "digits").state == "bad", "what was named must be there"


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))
    assert doctor.python().state == "bad"


def test_a_broken_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: operator torchvision::nms does not exist")
    monkeypatch.setattr(doctor, "_python", lambda code: broken)
    check = doctor.torch_pair()
    assert check.state == "bad" and "nms" in check.found and "same index" in check.fix
    assert doctor.gpu().state == "ok", "a GPU is optional"


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.system().state == "bad"


def test_a_superlink_elsewhere() -> None:
    [port] = doctor.free_ports(1)
    assert doctor.reachable(f"127.0.0.1:{port}").state == "bad"
    with socket.create_server(("127.0.0.1", port)):
        assert doctor.reachable(f"localhost:{port}").state == "ok"
    for wrong in ("nonsense", "127.0.0.1:²", "127.0.0.1:99999"):
        assert "HOST:PORT" in doctor.reachable(wrong).found
    assert "knows no no.such.host.invalid" in doctor.reachable("no.such.host.invalid:9092").found


def test_missing_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "environment", lambda: {"PATH": "/nowhere"})
    assert doctor.scripts().state == "bad" and "flower-superlink" in doctor.scripts().found


def test_a_clock_in_the_past() -> None:
    assert doctor.clock(0.0).state == "bad" and doctor.clock().state == "ok"


def test_places_that_cannot_hold_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.writable(tmp_path / "not" / "yet").state == "ok"
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "runs", Path("/proc/nowhere")):
        assert doctor.writable(place).state == "bad"
    monkeypatch.setattr(doctor, "SPACE", 1e30)
    assert doctor.writable(tmp_path).state == "warn"


def test_data_and_app_that_are_not_there(tmp_path: Path) -> None:
    found = doctor.data(None, "digits")
    assert found.state == "ok" and found.found.endswith("10 classes, 359 test examples")
    assert doctor.data(None, "imagefolder:/no/such/folder").state == "bad"
    for dataset in ("mnist", "cifar10"):
        gone = doctor.data(None, f"{dataset}:{tmp_path / 'gone'}")
        assert gone.state == "bad" and f"there is no folder {tmp_path / 'gone'}" in gone.found
        assert doctor.data(None, f"{dataset}:{tmp_path}").state == "bad", "a folder without its files"
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    untested = doctor.data(None, f"imagefolder:{tmp_path / 'pictures'}")
    assert untested.state == "ok" and "1 classes, no test examples" in untested.found
    assert doctor.data(None, "digitz").state == "bad"
    assert doctor.app_of(tmp_path).state == "bad"


def test_ports_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.ports().state == "ok"

    def none(count: int) -> list[int]:
        raise doctor.PortError("no ports")

    monkeypatch.setattr(doctor, "free_ports", none)
    assert doctor.ports().state == "bad"


def test_the_table_shows_mends_of_problems_only() -> None:
    out = io.StringIO()
    checks = [Check("good", "ok", "fine [here]", "unused"), Check("wrong", "bad", "broken", "do this")]
    Console(file=out, width=100).print(doctor.table(checks))
    assert "do this" in out.getvalue() and "unused" not in out.getvalue() and "fine [here]" in out.getvalue()
