"""What the options of ``prunella export`` ask for."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prunella.deploy.cli import main
from prunella.deploy.tools import export
from prunella.deploy.tools.export import Exported, Wanted


def test_options_become_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def noted(run: Any, wanted: Wanted) -> Exported:
        asked.append((run.path, wanted))
        return Exported(tmp_path, 1, (2, 1), (2, 1), 0.0, 1.0, notes=("said",))

    monkeypatch.setattr(export, "export", noted)
    (tmp_path / "run.json").write_text("{}")
    options = ["--format", "onnx", "--format", "pte", "--int8", "--bench", "--data", "/data", "--best", "--out", "x"]
    result = CliRunner().invoke(main.app, ["export", str(tmp_path), *options])
    assert result.exit_code == 0 and "note       said" in result.output, result.output
    assert asked == [(tmp_path, Wanted(Path("x"), True, ("onnx", "pte"), True, True, Path("/data")))]
    (tmp_path / "run.json").write_text('{"status": "completed"}')
    monkeypatch.setattr("prunella.core.folders.unwritable", lambda folder: "Permission denied")
    read_only = CliRunner().invoke(main.app, ["export", str(tmp_path), "--out", "x"])
    assert read_only.exit_code == 0 and "cannot be written (Permission denied)" in read_only.output
    assert not (tmp_path / "report.html").exists()
    asked.pop()
    wrong = CliRunner().invoke(main.app, ["export", str(tmp_path), "--format", "onx"])
    assert wrong.exit_code == 2 and "did you mean 'onnx'" in wrong.output and len(asked) == 1
