import json
from pathlib import Path

from prunella.server.report.command import command, default_settings
from prunella.tasks.data import recommended_rate


def test_the_command_repeats_what_differs_from_thedefault_settings() -> None:
    same = default_settings()
    assert same["dgp.top"] != 0.1 and same["rounds"] == 10 and command({"settings": same}) == "prunella run"
    settings = same | {"seed": 3, "resume": True, "run-dir": "x", "dgp.top": 0.1, "dataset": "a b"}
    assert command({"settings": settings}).split(" \\\n  ") == [
        "prunella run", "-c 'dataset=a b'", "-c dgp.top=0.1", "-c learning-rate=0.25", "-c seed=3",
    ]  # fmt: skip


def test_how_many_sites_there_were_and_what_they_were_started_with_is_an_option(tmp_path: Path) -> None:
    run = {"settings": {"expected-clients": 2}}
    assert command(run) == "prunella run --supernodes 2"
    assert command({"settings": {"expected-clients": "2; x"}}) == "prunella run", "what nobody can have set"
    for kept, words in (
        ({"audit": "pictures", "client_seed": None, "simulate": False}, "prunella run --supernodes 2"),
        ({"audit": "deny", "client_seed": 7}, "prunella run --supernodes 2 --audit deny --client-seed 7"),
        ({"audit": "$(x)", "client_seed": "$(x)", "simulate": True}, "prunella simulate --supernodes 2"),
    ):
        (tmp_path / "launch.json").write_text(json.dumps(kept))
        assert command(run, tmp_path) == words
    (tmp_path / "launch.json").write_text("{")
    assert command(run, tmp_path) == "prunella run --supernodes 2"


def test_a_learning_rate_is_named_unless_it_is_the_one_that_its_dataset_recommends() -> None:
    run = {"dataset": "mnist:/data", "learning-rate": recommended_rate("mnist")}
    assert "learning-rate" not in command({"settings": run})
    assert "-c learning-rate=0.25" in command({"settings": {**run, "learning-rate": 0.25}})
