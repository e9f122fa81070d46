"""A bundle that nobody approved is not unpacked; one that was runs behind the gate, from where nobody has been."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.cli.install import install_from_fab
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.supercore.task_identity import TaskIdentity

from prunella.core.errors import ConfigError
from prunella.core.installation import IMPORT_ROOT as ROOT
from prunella.deploy.errors import UsageError
from prunella.deploy.runtime.approved import APPROVED, FAILED, Bundles, Unapproved, environment, read_approval
from prunella.deploy.runtime.control_api import app_files
from tests.federation.small_app import write

CONFIG = {"partition-id": 0}


@pytest.fixture
def fab(tmp_path: Path) -> bytes:
    write(tmp_path / "app", [], tmp_path / "result", "dgp")
    return bundle(tmp_path)


def bundle(folder: Path) -> bytes:
    return build_fab_from_files(app_files(folder / "app", folder / "app"))[0]


@pytest.fixture
def bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundles:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("pytorchexample")]:
        monkeypatch.delitem(sys.modules, name)
    return Bundles(install_from_fab, get_load_client_app_fn)


def approve(monkeypatch: pytest.MonkeyPatch, *hashes: str) -> None:
    for name, value in environment(hashes, CONFIG).items():
        monkeypatch.setenv(name, value)


def loaded(bundles: Bundles) -> Any:
    return bundles.get_loader("", None, True)("somebody/else", "9.9", "0123456789")


def test_without_approval_flower_s_own_functions_do_what_they_did(
    fab: bytes, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(APPROVED, raising=False)
    assert bundles.install(fab, skip_prompt=True).parent.parent.name == "home"
    digest = hashlib.sha256(fab).hexdigest()
    app = bundles.get_loader("", None, True)("somebody/pytorchexample", "1.0.0", digest)
    assert app is sys.modules["pytorchexample.client_app"].app


def test_a_bundle_that_is_not_approved_is_not_unpacked(
    fab: bytes, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(monkeypatch, "0" * 64)
    with pytest.raises(Unapproved, match=f"--approve {hashlib.sha256(fab).hexdigest()}"):
        bundles.install(fab, skip_prompt=True)
    with pytest.raises(Unapproved):
        loaded(bundles)
    assert not (tmp_path / "home").exists() and "pytorchexample" not in sys.modules


def test_an_approved_one_runs_behind_the_gate_and_leaves_nothing(
    fab: bytes, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve(monkeypatch, "0" * 64, hashlib.sha256(fab).hexdigest())
    folder = bundles.install(fab, skip_prompt=True)
    handle = loaded(bundles)
    assert sys.modules["pytorchexample.client_app"].__file__ == str(folder / "pytorchexample" / "client_app.py")
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    message = Message(RecordDict(), 1, "train")
    with pytest.raises(ConfigError, match="another node configuration"):
        handle(message, Context(1, 1, {"partition-id": 1}, RecordDict(), {}))
    assert not folder.exists()


def test_what_an_earlier_run_left_in_flower_s_folder_is_not_what_runs(
    fab: bytes, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(APPROVED, raising=False)
    left = bundles.install(fab, skip_prompt=True) / "pytorchexample" / "client_app.py"
    left.write_text("app = 'poisoned'")
    approve(monkeypatch, hashlib.sha256(fab).hexdigest())
    assert bundles.install(fab, skip_prompt=True) / "pytorchexample" / "client_app.py" != left
    loaded(bundles)
    assert sys.modules["pytorchexample.client_app"].app != "poisoned"


def test_what_an_import_raises_is_told_in_one_text(
    fab: bytes, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app/pytorchexample/task.py").write_text("raise ValueError('patient 4711')")
    other = bundle(tmp_path)
    approve(monkeypatch, hashlib.sha256(other).hexdigest())
    bundles.install(other, skip_prompt=True)
    with pytest.raises(Unapproved) as error:
        loaded(bundles)
    assert str(error.value) == FAILED


def test_a_bundle_with_a_prunella_of_its_own_is_refused(
    fab: bytes, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app/prunella").mkdir()
    (tmp_path / "app/prunella/__init__.py").write_text("")
    other = bundle(tmp_path)
    (tmp_path / "other.fab").write_bytes(other)
    approve(monkeypatch, hashlib.sha256(other).hexdigest())
    with pytest.raises(Unapproved, match="its own prunella only"):
        bundles.install(other, skip_prompt=True)
    with pytest.raises(UsageError, match="a prunella of its own"):
        read_approval(str(tmp_path / "other.fab"))


def test_what_can_be_approved(fab: bytes, tmp_path: Path) -> None:
    digest = hashlib.sha256(fab).hexdigest()
    (tmp_path / "app.fab").write_bytes(fab)
    assert read_approval(str(tmp_path / "app.fab")) == read_approval(digest.upper()) == digest
    (tmp_path / "text.fab").write_text("no archive")
    (tmp_path / "ours.fab").write_bytes(build_fab_from_files(app_files(ROOT, ROOT))[0])
    for given, words in (
        (str(tmp_path / "missing.fab"), "flwr build"),
        (digest[:8], "SHA-256"),
        (str(tmp_path / "text.fab"), "no bundle of Flower's"),
        (str(tmp_path / "ours.fab"), "Prunella's own app"),
    ):
        with pytest.raises(UsageError, match=words):
            read_approval(given)
