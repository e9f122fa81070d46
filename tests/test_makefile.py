"""What the Makefile works out for itself."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOST = "MemTotal:       65536000 kB\nMemFree:        1000 kB\n"


def would_run(target: str, *memory: Path) -> tuple[str, str]:
    """What a target would run, and what make and its shell complain of, where these files tell the memory."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", target, f"MEMORY={' '.join(map(str, memory))}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("host", "limit", "workers"),
    [
        (HOST, None, 4),
        (HOST, "max", 4),
        (HOST, "9223372036854771712", 4),
        (HOST, str(12 * 2**30), 3),
        (HOST, str(4 * 2**30), 2),
        ("MemTotal: 8000000 kB\n", str(64 * 2**30), 2),
        (None, None, 2),
    ],
)
def test_as_many_federations_at_once_as_the_container_has_memory_for(
    tmp_path: Path, host: str | None, limit: str | None, workers: int
) -> None:
    files = tmp_path / "meminfo", tmp_path / "memory.max"
    for file, text in zip(files, (host, limit), strict=True):
        if text is not None:
            file.write_text(text + "\n")
    said, complaints = would_run("federation", *files)
    assert f"pytest -n {workers} " in said and not complaints
