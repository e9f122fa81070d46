"""A wheelhouse of small packages made here, without a network: what it holds, what installs, what is refused."""

import base64
import hashlib
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from prunella.core.errors import ConfigError
from prunella.core.installation import IMPORT_ROOT
from prunella.deploy.errors import LaunchError, UsageError
from prunella.deploy.tools import wheelhouse
from prunella.deploy.tools.wheelhouse import listed, ours, pack, pinned


def wheel(folder: Path, name: str, tag: str = "py3-none-any", needs: Sequence[str] = (), version: str = "1.0") -> Path:
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    wanted = "".join(f"Requires-Dist: {each}\n" for each in needs)
    entry = "Provides-Extra: server\n" if "extra" in wanted else ""
    files = {
        f"{name}.py": "answer = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{entry}{wanted}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = f"{info}/RECORD,,\n"
    for each, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{each},sha256={digest},{len(text)}\n"
    files[f"{info}/RECORD"] = record
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    return path


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip asks."""
    there = tmp_path / "registry"
    markers = "platform_machine == 'x86_64'", "platform_machine == 'aarch64'", "extra == 'server'"
    needs = ["plain", f"cuda ; {markers[0]}", f"jetson ; {markers[1]}", f"web ; {markers[2]}"]
    needs += ["msvc ; sys_platform == 'win32'", "metal ; platform_system == 'Darwin'"]
    own = wheel(tmp_path / "own", "prunella", needs=needs)
    for name in ("plain", "web", "more"):
        wheel(there, name)
    wheel(there, "cuda", "cp311-cp311-manylinux_2_28_x86_64")
    wheel(there, "jetson", "cp311-cp311-manylinux_2_28_aarch64")
    wheel(there, "msvc", "cp311-cp311-win_amd64")
    wheel(there, "metal", "cp311-cp311-macosx_12_0_arm64")
    monkeypatch.setattr(wheelhouse, "ours", lambda scratch: str(own))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(there))
    return there


def names(out: Path) -> set[str]:
    return {path.name.split("-")[0] for path in out.glob("*.whl")}


def installed(out: Path, venv: Path, within: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    command = [*within, "sh", str(out / "install.sh"), str(venv)]
    return subprocess.run(command, env=env, capture_output=True, text=True)


CUT = ("unshare", "--map-root-user", "--net")


def may_be_cut() -> bool:
    return bool(shutil.which(CUT[0])) and not subprocess.run([*CUT, "true"], capture_output=True).returncode


def test_it_holds_what_was_asked_for(registry: Path, tmp_path: Path) -> None:
    made = pack(tmp_path / "house", ["server"], ["more"], "x86_64", "3.11")
    assert names(made.folder) == {"prunella", "plain", "cuda", "web", "more"} and made.wheels == 5
    assert len((made.folder / "requirements.txt").read_text().splitlines()) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"house", "own", "registry"}


@pytest.mark.parametrize("here", ["1.39.4", "1.42.0"])
def test_a_site_s_flower_is_the_centre_s(
    here: str, registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One release speaks gRPC and the other HTTP: they would wait for each other for ever."""
    monkeypatch.setattr("prunella.deploy.runtime.flower_release.version", lambda: here)
    for version in ("1.39.2", "1.41.0", "1.42.3", "1.43.0"):
        wheel(registry, "flwr", version=version)
    own = wheel(tmp_path / "other", "prunella", needs=["flwr >=1.39,<1.43"])
    monkeypatch.setattr(wheelhouse, "ours", lambda scratch: str(own))
    made = pack(tmp_path / "house", (), (), "x86_64", "3.11")
    assert [path.name[:9] for path in made.folder.glob("flwr*")] == [f"flwr-{here[:4]}"]


def test_it_installs_without_asking_anybody_and_refuses_a_file_that_was_changed(registry: Path, tmp_path: Path) -> None:
    for name in ("cuda", "jetson"):
        wheel(registry, name)
    made = pack(tmp_path / "house")
    done = installed(made.folder, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", "import plain; print(plain.answer)"], capture_output=True
    )
    assert told.stdout == b"42\n"
    changed = next(made.folder.glob("plain-*"))
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("evil.py", "")
    refused = installed(made.folder, tmp_path / "again")
    assert (
        refused.returncode and "plain" in refused.stderr and "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
    )


@pytest.mark.skipif(not may_be_cut(), reason="the kernel lets nobody cut off the network here: unshare --net")
def test_it_installs_where_there_is_no_network(registry: Path, tmp_path: Path) -> None:
    for name in ("cuda", "jetson"):
        wheel(registry, name)
    made = pack(tmp_path / "house")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ask = f"import socket; socket.create_connection(('127.0.0.1', {listening.getsockname()[1]}), 5)"
        asked = [subprocess.run([*within, sys.executable, "-c", ask], capture_output=True) for within in ((), CUT)]
    assert [done.returncode for done in asked] == [0, 1] and b"Network is unreachable" in asked[1].stderr
    done = installed(made.folder, tmp_path / "venv", CUT)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "venv").rglob("plain.py"))


def test_another_machine_gets_its_own_wheels_and_not_what_only_this_one_needs(registry: Path, tmp_path: Path) -> None:
    made = pack(tmp_path / "house", machine="aarch64", python="3.11")
    assert names(made.folder) == {"prunella", "plain", "jetson"}


@pytest.mark.parametrize(("machine", "needed"), [("aarch64", "jetson"), ("windows", "msvc"), ("macos", "metal")])
def test_what_another_machine_needs_is_listed_without_a_download(
    registry: Path, tmp_path: Path, machine: str, needed: str
) -> None:
    lines = listed(machine=machine, python="3.11")
    assert [line.split("==")[0] for line in lines] == [needed, "plain"]
    file = next(registry.glob("plain-*"))
    assert f"{pinned(file)}" == lines[1] + "\n" and not (tmp_path / "wheelhouse").exists()
    with pytest.raises(LaunchError, match="^pip install failed: No matching distribution found for nowhere$"):
        listed(also=["nowhere"])


def test_the_list_for_arm64_covers_what_a_client_needs() -> None:
    text = (IMPORT_ROOT / "docker" / "arm64-wheels.txt").read_text()
    assert text.startswith("# prunella wheelhouse --machine aarch64 --python 3.11 --list docker/arm64-wheels.txt\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    versions = dict(re.fullmatch(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups() for line in lines)
    needed = tomllib.loads((IMPORT_ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for each in map(Requirement, needed):
        assert each.specifier.contains(versions[each.name]), each


def test_another_python_is_told_when_it_is_installed(registry: Path, tmp_path: Path) -> None:
    for name in ("cuda", "jetson"):
        wheel(registry, name)
    made = pack(tmp_path / "house", python="3.99")
    done = installed(made.folder, tmp_path / "venv")
    assert done.returncode and done.stderr.strip() == "these wheels are for Python 3.99: set PYTHON"


def test_what_cannot_be_packed_is_a_line(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="^pip download failed: No matching distribution found for nowhere$"):
        pack(tmp_path / "house", also=["nowhere"])
    assert not list((tmp_path / "house").iterdir()), "the same command can be typed again"
    with pytest.raises(UsageError, match="own is not empty: name another"):
        pack(tmp_path / "own")
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/house")):
        with pytest.raises(UsageError, match="no folder can be made of"):
            pack(where)
    with pytest.raises(ConfigError, match="^unknown extra 'sever': did you mean 'server'"):
        pack(tmp_path / "house", ["sever"])
    with pytest.raises(UsageError, match="--python 2 is not a version such as 3.12"):
        pack(tmp_path / "other", python="2")
    with pytest.raises(UsageError, match="x86_64, aarch64, macos, windows, not for 'vax'"):
        pack(tmp_path / "other", machine="vax")
    assert not (tmp_path / "other").exists()


def test_of_a_checkout_its_own_wheel_is_built_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "checkout"
    kept = ("pyproject.toml", "core/a.py", "core/build/c.py")
    for name in (*kept, "build/lib/old.py", ".venv/b.py", "own/pyvenv.cfg", "house/install.sh"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).touch()
    monkeypatch.setattr(wheelhouse, "IMPORT_ROOT", there)
    monkeypatch.setattr(wheelhouse, "ROOMS", there)
    copy = Path(ours(tmp_path / "scratch"))
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {*kept}


def test_a_wheel_is_pinned_by_its_digest(tmp_path: Path) -> None:
    made = wheel(tmp_path / "one", "plain")
    assert pinned(made) == f"plain==1.0 --hash=sha256:{hashlib.sha256(made.read_bytes()).hexdigest()}\n"
