"""A few seconds of coverage-guided fuzzing, where atheris is installed, and the proof that it would notice a fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris")
ROOT = Path(__file__).parents[2]


def fuzz(tmp_path: Path, script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *options, "-rss_limit_mb=4096", "-timeout=10", "-seed=1"]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *command]  # else its peak of memory counts from that of pytest
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)


def test_no_bytes_crash_the_decoder(tmp_path: Path) -> None:
    done = fuzz(tmp_path, ROOT / "tests/wire/fuzz_wire.py", "-max_total_time=5", "-runs=20000")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done " in done.stderr


def test_a_decoder_that_raises_something_else_is_found(tmp_path: Path) -> None:
    source = (ROOT / "tests/wire/fuzz_wire.py").read_text()
    broken = source.replace("except WireError as error:", "except KeyError as error:")
    assert broken != source
    script = tmp_path / "broken.py"
    script.write_text(broken)
    assert fuzz(tmp_path, script, "-runs=2000").returncode != 0
