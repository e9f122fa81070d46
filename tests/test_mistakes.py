"""docs/mistakes.md: every command of its table is typed, and refused with the answer that stands there."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from PIL import Image
from typer.testing import CliRunner

from prunella.benchmarks.__main__ import run
from prunella.deploy.cli import federation
from prunella.deploy.cli.main import app
from prunella.deploy.local import launcher
from prunella.deploy.tools import claims

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"
ROWS = re.findall(r"^\| `(prunella [^`]+)` \| (.+) \| [0-9.]+ \|$", PAGE.read_text(), re.M)


def in_this_process(module: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    sys.exit(run(module[-1], list(arguments)))


def without_processes(begin: Callable[..., object]) -> Callable[..., object]:
    """The launcher up to where it would start a federation: its own checks and the caller's."""

    def launch(request: object, view: object, check: Callable[[], None], *rest: object) -> object:
        def checked(*_: object) -> object:
            check()
            pytest.fail("this would have started a federation")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launcher, "_run", checked)
            return begin(request, view, check, *rest)

    return launch


def test_the_page_has_more_than_twenty() -> None:
    assert len(ROWS) >= 25 and len(ROWS) == PAGE.read_text().count("| `prunella")


@pytest.mark.parametrize(("line", "answer"), ROWS, ids=[line for line, _ in ROWS])
def test_a_mistake_is_refused_in_a_line(
    line: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    (tmp_path / "empty").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "untested" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "untested" / name / "1.png")
    monkeypatch.setattr(federation, "launch", without_processes(federation.launch))
    monkeypatch.setattr(claims, "measure", in_this_process)
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    said = [text for text in (result.output + capfd.readouterr().err).splitlines() if text.strip()]
    assert answer in said[-1] and "Traceback" not in "".join(said)
    assert result.exit_code == (0 if line == "prunella runs" else 2) and len(said) <= 3
