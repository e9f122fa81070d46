from prunella.server.audit.job import Job


def test_a_job_is_named_by_its_round_and_by_whom_it_attacks() -> None:
    assert Job(2, "control", None, "", "none").name == "round-000002-control"
    assert Job(2, "client", 7, "", "dgp").name == "round-000002-client-7"
