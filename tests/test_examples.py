"""Every notebook of ``examples/`` runs to its end in a folder of its own, and still says what is stored in it.

After a change: ``jupyter execute --inplace examples/*.ipynb``, and look at each.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
KIB = 300  # most of a notebook, pictures included
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def words(cell: Any) -> list[str]:
    """What a cell printed or answered as text, its numbers taken out: they differ in a last digit between machines."""
    texts = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.get("outputs", [])]
    return re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", "".join(texts)).split()


def test_there_is_one_for_each_question() -> None:
    names = ["audit_my_model", "compare_two_defenses", "defend_my_flower_app", "read_an_epsilon"]
    assert [path.stem for path in NOTEBOOKS] == names


@each
def test_a_notebook_is_stored_as_it_ran(path: Path) -> None:
    assert path.stat().st_size < KIB * 1024
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [out for cell in code for out in cell["outputs"]]
    assert not [out for out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"]
    assert any("image/png" in out.get("data", {}) or "<img" in str(out.get("data", {})) for out in outputs), (
        "no picture"
    )


@pytest.mark.slow
@each
def test_a_notebook_runs_and_says_the_same(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed: it is in prunella[dev]")
    import nbformat

    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    stored = [words(cell) for cell in notebook.cells]
    where = {"metadata": {"path": str(tmp_path / "examples")}}
    client.NotebookClient(notebook, timeout=240, startup_timeout=180, kernel_name="python3", resources=where).execute()
    assert [words(cell) for cell in notebook.cells] == stored
