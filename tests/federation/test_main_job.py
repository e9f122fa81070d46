"""The README's main job with real processes over the network, and what it promises."""

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prunella.attacks.score.gallery import ALIGNED
from prunella.deploy.runtime import flower_release
from prunella.server.checkpoint import load
from prunella.server.store.read import read_audits, read_metrics, read_run

pytestmark = [pytest.mark.federation, pytest.mark.timeout(960)]  # the job has 900 s, which only end what hangs
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finished:
    path: Path
    code: int
    output: str

    def series(self, metric: str, **labels: str) -> list[float]:
        return [r["value"] for r in read_metrics(self.path) if r["metric"] == metric and r["labels"] == labels]

    def audits(self, kind: str) -> list[dict[str, Any]]:
        return [audit for audit in read_audits(self.path) if audit["kind"] == kind]


def prunella(*arguments: str, cwd: Path, timeout: float = 900) -> Finished:  # only ends what hangs
    command = [sys.executable, "-c", "from prunella.deploy.cli import start; start()", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    return Finished(cwd / "runs" / "latest", done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """``prunella run`` as it stands in the README, but that audits end after a quarter of their passes: two thirds of
    the job's processor time went into making what is rebuilt behind the defense finer than is asked for here. Solving
    for squared gradients takes more than a sixteenth."""
    short = ("-c", "portfolio.passes=8000", "-c", "portfolio.label-passes=8000")
    done = prunella("run", *short, cwd=tmp_path_factory.mktemp("main-job"))
    assert done.code == 0, done.output
    return done


def test_it_learns_while_pruned_and_sends_less_than_dense(job: Finished) -> None:
    assert read_run(job.path)["status"] == "completed"
    assert len(job.series("accuracy_ratio")) == 10
    assert job.series("accuracy_ratio")[-1] >= 0.85  # in 60 runs 0.905 to 0.958: PriPrune draws anew
    assert max(job.series("mask_density_ratio")) <= 0.70
    for direction in ("up", "down"):
        sent, dense = (job.series(f"wire_{kind}_total", direction=direction)[-1] for kind in ("bytes", "dense_bytes"))
        assert 0 < sent < dense
    assert job.series("clients_selected") == [4.0] * 10
    assert not [r for r in read_metrics(job.path) if r["metric"] == "client_failures_total"]


def test_the_worst_case_is_rebuilt_behind_the_defense_too(job: Finished) -> None:
    """It is a client's first round, in which PriPrune has nothing to hide by."""
    single, defended = job.audits("single"), job.audits("single-defended")
    assert len(single) == len(defended) == 3  # round 4, too: the first in which squared gradients leave
    for each in (*single, *defended):
        assert each["scores"]["psnr"]["mean"] >= 30 and each["scores"]["label_accuracy"] == 1.0


def test_eight_steps_of_sixteen_are_judged_by_a_control_of_as_many_which_fails(job: Finished) -> None:
    for control in job.audits("control"):
        # Where they are told apart only when aligned, that is asked of the first few.
        assert control["scores"]["recognition"]["images"] in (128, ALIGNED) and control["ok"] is False
        assert control["outcome"] == "control-failed" and "cannot judge this setting" in control["reason"]
    assert "Nothing rebuilt" not in job.output and "failed on its undefended control in 3 of 6 trials" in job.output
    clients = job.audits("client")
    assert clients and all(a["outcome"] == "scored" and a["pictures"] for a in clients)
    assert min(job.series("defense_rate_ratio")) > 0.02


def test_the_report_is_one_file_that_shows_it(job: Finished) -> None:
    html = (job.path / "report.html").read_text()
    assert not re.search(r"""(src|href)=["']https?:""", html)
    assert html.count("data:image/png;base64,") >= 4
    assert str(job.path.resolve() / "report.html") in job.output or "report.html" in job.output


def test_the_transport_was_that_of_the_installed_flower_and_nothing_private_lies_open(job: Finished) -> None:
    said = "gRPC-rere" if flower_release.speaks_grpc() else "HTTP"
    assert f"Starting Fleet API ({said}) on 127.0.0.1:" in (job.path / "logs" / "superlink.log").read_text()
    warm = (job.path / "logs" / "zygote.log").read_text()
    assert "ready, single-threaded" in warm, "every process was forked from one that had imported Flower and PyTorch"
    assert "are forked from a template" in warm and "imports its app again" not in warm
    for node in (job.path / "nodes").iterdir():
        assert stat.S_IMODE(node.stat().st_mode) == 0o700
        assert list((node / "state").rglob("round-*.safetensors"))


def test_a_recorded_view_can_be_attacked_again_from_the_command_line(job: Finished) -> None:
    trace = next(job.path.glob("traces/*-control/view.safetensors"))
    cheap = ("-c", "portfolio.passes=2000", "-c", "portfolio.label-passes=2000")
    done = prunella("audit", str(trace.resolve()), "--out", "pictures", *cheap, cwd=job.path.parent.parent)
    assert done.code == 0, done.output
    assert "honest-but-curious" in done.output
    assert list((job.path.parent.parent / "pictures").iterdir())


def test_the_ledger_of_every_client_is_kept_with_the_checkpoint(job: Finished) -> None:
    saved = load(job.path / "checkpoint")
    assert saved is not None and saved.round == 10
    assert sorted(saved.ledgers) == ["0", "1", "2", "3"]
    assert all("heuristic, no ε" in str(line["claims"]) for line in saved.ledgers.values())
    assert json.loads((job.path / "run.json").read_text())["claims"] == ["priprune: heuristic, no ε"]


def test_a_completed_run_is_not_run_again(job: Finished) -> None:
    done = prunella("run", "--resume", "latest", cwd=job.path.parent.parent)
    assert done.code == 0 and "completed already" in done.output
