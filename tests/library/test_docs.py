"""What docs/library.md shows runs as it stands there, from the first block to the last."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert (tmp_path / "rebuilt.png").stat().st_size > 100
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 10  # two attacks on five updates


PLAIN = """
import sys
from importlib.machinery import PathFinder

EXTRAS = "sklearn PIL torchvision torchmetrics pyarrow prometheus_client pandas matplotlib ray".split()


class Plain:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in EXTRAS else PathFinder.find_spec(name, path, target)


sys.meta_path[:] = [Plain if each is PathFinder else each for each in sys.meta_path]
import torch
from torch import nn

import prunella

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
x, y = torch.rand(1, 1, 8, 8), torch.tensor([3])
nn.functional.cross_entropy(model(x), y).backward()
result = prunella.attack(prunella.view(model, shape=(1, 8, 8), batch=1), "ig", iterations=2)
report = prunella.audit(model, (x, y), attacks="r-gap", worst_case=False)
assert not [name for name in EXTRAS if name in sys.modules]
print(len(result._repr_png_()) > 100, isinstance(report.figure(), bytes), report.verdict.badge)
"""


@pytest.mark.slow
def test_a_plain_installation_attacks_and_shows() -> None:
    """With none of the packages that only extras bring."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PAGE.parents[1])}
    done = subprocess.run([sys.executable, "-c", PLAIN], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.startswith("True True "), done.stdout
