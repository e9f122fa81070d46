"""What runs where there is no POSIX: the library, a client's rounds, and the commands that start no process."""

import subprocess
import sys
from pathlib import Path

import torch

from prunella.attacks.trace import save_trace
from prunella.core.trees import zeros_like
from prunella.core.types import ServerView
from prunella.tasks.task import Task, initial

ROOT = Path(__file__).resolve().parent.parent


def test_clients_train_and_reports_and_audits_are_made_without_posix(tmp_path: Path) -> None:
    task = Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    update = {name: torch.full_like(each, 0.01) for name, each in zeros_like(params).items()}
    view = ServerView(params, update, buffers=buffers, num_examples=1, steps=1, batch_size=1, learning_rate=0.1)
    save_trace(tmp_path / "mine.safetensors", view, task, {"round": 5, "node": "7"})
    command = [sys.executable, "-m", "tests.elsewhere", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-4000:]
