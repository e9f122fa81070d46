"""All rounds of one client are found beside its trace, and nothing of another's."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prunella.attacks import find_attack
from prunella.attacks.score.control import undefended_view
from prunella.attacks.trace import save_trace
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.deploy.cli.main import app
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.client_rounds import earlier_rounds, last_round, round_and_client
from prunella.deploy.tools.replay import Sources, find_trace
from prunella.tasks.task import Task, initial

TASK = Task("cnn", (1, 8, 8), 10)


def save(path: Path, round: object, node: object, weights: int = 0) -> Path:
    batch = PrivateBatch(torch.rand(1, 1, 8, 8, generator=stream(0, purpose="image")), torch.tensor([3]))
    save_trace(path, undefended_view(TASK, *initial(TASK, weights), batch), TASK, {"round": round, "node": node})
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Rounds 2, 10 and 11 of node 7 and round 3 of node 8, beside files that are no traces."""
    for place, (round, node) in enumerate([(10, "7"), (2, "7"), (3, "8"), (11, "7")]):
        save(tmp_path / f"{chr(ord('d') - place)}.safetensors", round, node, weights=place)
    (tmp_path / "garbage.safetensors").write_bytes(b"\x80\x04.")
    return tmp_path


def test_the_rounds_of_a_client_come_by_number_and_without_another_s(recorded: Path) -> None:
    names = [path.stem for path in earlier_rounds(recorded / "a.safetensors")]
    assert names == ["c", "d"] and earlier_rounds(recorded / "c.safetensors") == []
    save(recorded / "odd.safetensors", "12", "7")
    assert round_and_client(recorded / "odd.safetensors") is None and earlier_rounds(recorded / "odd.safetensors") == []
    views = Sources(recorded / "a.safetensors", recorded).views(find_attack("every-round").every_round)
    assert len(views[2]) == 2 and not Sources(recorded / "a.safetensors", recorded).views()[2]
    name = next(iter(views[0].params))
    assert torch.equal(views[2][0].params[name], initial(TASK, 1)[0][name])


def test_a_folder_stands_for_its_client_s_last_round_and_two_clients_are_told(recorded: Path) -> None:
    with pytest.raises(UsageError, match="traces of 2 clients: name the last of one"):
        last_round(recorded)
    (recorded / "b.safetensors").unlink()
    assert find_trace(recorded) == (recorded / "a.safetensors", "a")
    with pytest.raises(UsageError, match="no trace"):
        (recorded / "empty").mkdir()
        find_trace(recorded / "empty")


def test_in_a_run_the_directories_name_the_client(tmp_path: Path) -> None:
    for name in ("round-000004-client-1", "round-000012-client-1", "round-000008-client-0", "round-000004-control"):
        save(tmp_path / name / "view.safetensors", 0, None)
    file = tmp_path / "round-000012-client-1" / "view.safetensors"
    assert [path.parent.name for path in earlier_rounds(file)] == ["round-000004-client-1"]
    assert earlier_rounds(tmp_path / "round-000004-control" / "view.safetensors") == []


def test_another_client_s_round_is_refused_and_the_command_takes_all_rounds(recorded: Path) -> None:
    def audit(*more: object) -> str:
        words = ["audit", recorded / "a.safetensors", "--attack", "every-round", "--out", recorded, *more]
        quick = ["-c", "every-round.iterations=2", "-c", "every-round.labels-tried=1"]
        result = CliRunner().invoke(app, [str(word) for word in [*words, *quick]])
        return result.output + (result.stderr if result.stderr_bytes else "")

    with pytest.raises(UsageError, match="is of node 8, and the trace under attack of node 7"):
        Sources(recorded / "a.safetensors", recorded, earlier=(recorded / "b.safetensors",)).views()
    told = audit()
    assert "3 rounds" in told and "verdict" in told
    assert "2 rounds" in audit("--earlier", recorded / "c.safetensors")
