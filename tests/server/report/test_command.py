from prunella.server.report.command import command, default_settings


def test_the_command_repeats_what_differs_from_thedefault_settings() -> None:
    same = default_settings()
    assert same["dgp.top"] != 0.1 and same["rounds"] == 10 and command({"settings": same}) == "prunella run"
    settings = same | {"seed": 3, "resume": True, "run-dir": "x", "dgp.top": 0.1, "dataset": "a b"}
    assert command({"settings": settings}).split(" \\\n  ") == [
        "prunella run", "-c 'dataset=a b'", "-c dgp.top=0.1", "-c seed=3",
    ]  # fmt: skip
