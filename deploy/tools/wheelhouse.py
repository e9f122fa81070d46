"""``prunella wheelhouse``: all that a site without a network installs, in one folder that one carries there.

    *.whl                Prunella and everything that it needs, for one Python and one kind of machine
    requirements.txt     each of them with its SHA-256: pip refuses any other file
    install.sh           makes a virtual environment of them and asks nobody

The digests say that what arrives is what was packed; who packed it, a signature on the folder must say. Flower is of
the release that is installed here: a site's must speak as the centre's does, over gRPC or over HTTP.
"""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from prunella.core.errors import unknown
from prunella.core.installation import IMPORT_ROOT, ROOMS
from prunella.deploy.errors import LaunchError, UsageError, why
from prunella.deploy.runtime import flower_release

# pip takes wheels of another machine, and yet asks its own which packages are needed there: CUDA's, on x86_64.
PIP = """
import json, sys
import pip._vendor.packaging.markers as markers
there, here = json.loads(sys.argv[1]), markers.default_environment
markers.default_environment = lambda: {**here(), **there}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
MADE = ("pyvenv.cfg", "install.sh")  # in an environment, and in a wheelhouse of before: gigabytes
GLIBC = range(17, 29)  # the C libraries 2.x whose wheels are taken: PyTorch needs 2.28, Debian 10 and Ubuntu 20.04 on
MACOS = ("14_0", "13_0", "12_0", "11_0", "10_13", "10_9")
MARKERS = ("sys_platform", "platform_system", "os_name", "platform_machine")  # what requirements ask of a machine
MACHINES = {
    "x86_64": ("linux", "Linux", "posix", "x86_64"),
    "aarch64": ("linux", "Linux", "posix", "aarch64"),
    "macos": ("darwin", "Darwin", "posix", "arm64"),
    "windows": ("win32", "Windows", "nt", "AMD64"),
}
HERE = {"darwin": "macos", "win32": "windows"}.get(sys.platform, platform.machine())
INSTALL = """#!/bin/sh
# Installs what lies beside this script into a virtual environment, .venv unless another is named. No network is used,
# and a file whose digest is not in requirements.txt is refused.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
"${PYTHON:-python3}" -c 'import sys
if sys.version_info[:2] != (VERSION): sys.exit("these wheels are for Python DOTTED: set PYTHON")'
"${PYTHON:-python3}" -m venv "${1:-.venv}"
"${1:-.venv}/bin/python" -m pip install --disable-pip-version-check --no-index --find-links "$here" \\
  --require-hashes --requirement "$here/requirements.txt"
echo "installed: ${1:-.venv}/bin/prunella"
"""


@dataclass(frozen=True)
class Wheelhouse:
    """What was packed."""

    folder: Path
    wheels: int
    size: int  #: bytes

    def lines(self) -> list[str]:
        """What to tell the user.

        >>> Wheelhouse(Path("wheelhouse"), 60, 412_000_000).lines()[0]
        'wheelhouse  60 wheels, 0.41 GB'
        """
        return [
            f"{self.folder}  {self.wheels} wheels, {self.size / 1e9:.2f} GB",
            f"carry it to the site, then: sh {self.folder}/install.sh",
        ]


def ours(scratch: Path) -> str:
    """What pip makes this version's wheel of: a copy of the checkout, in which a build leaves nothing behind and finds
    nothing of the last one, or the release that is installed."""
    if not ((IMPORT_ROOT / "pyproject.toml").exists() and ROOMS == IMPORT_ROOT):
        return f"prunella=={version('prunella')}"

    def other(folder: str, names: list[str]) -> list[str]:
        aside = {"build", "dist", "runs", "__pycache__"} if Path(folder) == IMPORT_ROOT else {"__pycache__"}
        made = [name for name in names if any((Path(folder) / name / each).exists() for each in MADE)]
        return [name for name in names if name.startswith(".") or name in aside or name in made]

    return str(shutil.copytree(IMPORT_ROOT, scratch / "source", ignore=other))


@dataclass(frozen=True)
class SiteMachine:
    """The machine that installs: a key of ``MACHINES`` and a Python, this one's where they are ""."""

    machine: str = ""
    python: str = ""

    def __post_init__(self) -> None:
        if self.machine not in ("", *MACHINES):
            raise UsageError(f"wheels are there for {', '.join(MACHINES)}, not for {self.machine!r}")
        if self.python and not re.fullmatch(r"3\.\d+", self.python):
            raise UsageError(f"--python {self.python} is not a version such as 3.12")

    @property
    def dotted(self) -> str:
        return self.python or ".".join(map(str, sys.version_info[:2]))

    @property
    def elsewhere(self) -> bool:
        return (self.machine or HERE, self.dotted) != (HERE, SiteMachine().dotted)

    def platforms(self) -> list[str]:
        """Pip's options for wheels of another kind of machine.

        >>> SiteMachine("aarch64", "3.12").platforms()[:4]
        ['--platform', 'manylinux_2_28_aarch64', '--platform', 'manylinux_2_27_aarch64']
        """
        machine = self.machine or HERE
        tags = [*(f"manylinux_2_{minor}_{machine}" for minor in reversed(GLIBC)), f"manylinux2014_{machine}"]
        if machine == "windows":
            tags = ["win_amd64"]
        if machine == "macos":
            tags = [f"macosx_{version}_{kind}" for version in MACOS for kind in ("arm64", "universal2")]
        chosen = [word for tag in tags for word in ("--platform", tag)]
        return [*chosen, "--python-version", self.dotted, "--implementation", "cp"]

    def markers(self) -> dict[str, str]:
        """What requirements are told of such a machine."""
        machine = self.machine or HERE
        there = MACHINES.get(machine, ("linux", "Linux", "posix", machine))
        version = {"python_version": self.dotted, "python_full_version": f"{self.dotted}.0"}
        return dict(zip(MARKERS, there, strict=True)) | version


def pack(
    out: Path,
    extras: Sequence[str] = (),
    also: Sequence[str] = (),
    machine: str = "",
    python: str = "",
    index: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> Wheelhouse:
    """Fill ``out``. ``also``: requirements besides, such as a version of PyTorch; ``index``: package indexes besides.
    Raises ``UsageError`` where ``out`` holds something already, ``ConfigError`` for an extra that there is not,
    ``LaunchError`` with pip's last words."""
    target = SiteMachine(machine, python)
    try:
        out.mkdir(parents=True, exist_ok=True)
        full = any(out.iterdir())
    except OSError as error:
        raise UsageError(f"no folder can be made of {out}: {why(error)}") from None
    if full:
        raise UsageError(f"{out} is not empty: name another folder with --out")
    say("building Prunella's own wheel")
    # Into out only what is complete: after a failure the same command finds it empty.
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=out.parent) as downloads:
        wanted = built(Path(scratch), downloads, extras)
        say("downloading what it needs; PyTorch alone may take minutes")
        _of(target, index, "download", "--dest", downloads, wanted, *also)
        for wheel in Path(downloads).glob("*.whl"):
            wheel.replace(out / wheel.name)
    wheels = sorted(out.glob("*.whl"))
    (out / "requirements.txt").write_text("".join(map(pinned, wheels)))
    (out / "install.sh").write_text(
        INSTALL.replace("VERSION", target.dotted.replace(".", ", ")).replace("DOTTED", target.dotted)
    )
    return Wheelhouse(out, len(wheels), sum(wheel.stat().st_size for wheel in wheels))


def listed(
    extras: Sequence[str] = (), also: Sequence[str] = (), machine: str = "", python: str = "", index: Sequence[str] = ()
) -> list[str]:
    """What requirements.txt would hold beside Prunella itself; pip resolves it and downloads next to nothing."""
    target = SiteMachine(machine, python)
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = built(Path(scratch), scratch, extras), Path(scratch) / "report.json"
        quiet = ("--quiet", "--dry-run", "--ignore-installed", "--target", scratch, "--report", str(report))
        _of(target, index, "install", *quiet, wanted, *also)
        found = [(each["metadata"], each["download_info"]) for each in json.loads(report.read_text())["install"]]
    return sorted(
        f"{told['name'].lower()}=={told['version']} --hash=sha256:{file['archive_info']['hashes']['sha256']}"
        for told, file in found
        if told["name"] != "prunella"
    )


def built(scratch: Path, folder: str, extras: Sequence[str]) -> str:
    """The requirement of Prunella's own wheel with these extras, once it lies in ``folder``."""
    _pip("wheel", "--no-deps", "--wheel-dir", folder, ours(scratch))
    [own] = Path(folder).glob("prunella-*.whl")
    must_be_extras(own, extras)
    return f"prunella[{','.join(extras)}] @ {own.resolve().as_uri()}" if extras else str(own)


def must_be_extras(wheel: Path, extras: Sequence[str]) -> None:
    """Raise ``ConfigError`` for an extra that the wheel does not have: pip would only warn, and pack without it."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        known = message_from_bytes(archive.read(name)).get_all("Provides-Extra", [])
    for each in extras:
        if each not in known:
            raise unknown("extra", each, known)


def pinned(wheel: Path) -> str:
    """A line of requirements.txt: a wheel's name begins with that of its package and its version."""
    name, version = wheel.name.split("-")[:2]
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}\n"


def _of(target: SiteMachine, index: Sequence[str], command: str, *words: str) -> None:
    """Have pip do what it would do at ``target``, with wheels only, and this machine's release of Flower."""
    more = [word for url in index for word in ("--extra-index-url", url)]
    there = target.platforms() if target.elsewhere else []
    markers = target.markers() if target.elsewhere else {}
    with tempfile.TemporaryDirectory() as scratch:
        same = Path(scratch) / "constraints.txt"
        same.write_text(f"flwr=={flower_release.version().rpartition('.')[0]}.*\n")
        _pip(command, *more, "--constraint", str(same), "--only-binary", ":all:", *there, *words, of=markers)


def _pip(*words: str, of: Mapping[str, str] = MappingProxyType({})) -> None:
    command = [sys.executable, "-c", PIP, json.dumps(dict(of)), "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        told = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in told if line.startswith("ERROR")] or told[-1:]
        raise LaunchError(f"pip {words[0]} failed: {' '.join(errors[-1:]).removeprefix('ERROR: ')}")
