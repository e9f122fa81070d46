import json
from dataclasses import asdict
from pathlib import Path

from prunella.server.audit.job import Job


def test_a_job_is_named_by_its_round_and_by_whom_it_attacks() -> None:
    assert Job(2, "control", None, "", "none").name == "round-000002-control"
    assert Job(2, "client", 7, "", "dgp").name == "round-000002-client-7"


def test_a_sum_has_one_folder_and_a_line_for_every_client_that_scores_it(tmp_path: Path) -> None:
    whole = Job(2, "client", None, "", "none", 4, (0, 3))
    assert [(one.client, one.name) for one in whole.scored_by] == [
        (0, "round-000002-client-0"), (3, "round-000002-client-3")
    ]  # fmt: skip
    assert {one.folder for one in (whole, *whole.scored_by)} == {"round-000002-client"}
    alone = Job(2, "client", 7, "", "none")
    assert alone.scored_by == (alone,) and alone.folder == alone.name
    (tmp_path / "job.json").write_text(json.dumps({"job": asdict(whole)}))
    assert Job.read(tmp_path / "job.json") == whole
