"""prunella attest and verify, as they are called: files, words and exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prunella.deploy.cli.main import app
from prunella.server.store.schema import row
from tests.server.report.stored import full_run, new_run

RUNNER = CliRunner()


def call(*arguments: str | Path) -> tuple[int, str]:
    done = RUNNER.invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_a_run_is_attested_and_verified_and_a_changed_word_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full_run(tmp_path / "runs" / "one")
    code, said = call("attest", "one", "--no-pdf")
    assert code == 0 and "made keys/attest.key and keys/attest.pub" in said and "signed by SHA256:" in said
    assert (tmp_path / "keys" / ".gitignore").read_text() == "*\n"  # `git add .` would publish the key
    out = tmp_path / "runs" / "one" / "attestation"
    assert sorted(path.name for path in out.iterdir()) == [
        "attack_results.json",
        "attestation.html",
        "attestation.json",
    ]
    code, said = call("verify", out, "--run", tmp_path / "runs" / "one")
    assert code == 0 and said.splitlines()[-1] == "verified"
    code, said = call("attest", "one", "--no-pdf")
    assert code == 0 and "made keys" not in said
    page = out / "attestation.html"
    page.write_text(page.read_text().replace("Nothing", "Everything"))
    code, said = call("verify", out)
    assert code == 1 and "NOT VERIFIED: attestation.html is not what was signed" in said


def test_what_a_user_can_mend_is_one_line_and_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    new_run(tmp_path / "runs" / "going", status="running")
    refused = new_run(tmp_path / "runs" / "refused", rounds=0, status="failed")
    refused.append_metrics(0, [row("clients_available", 1)])  # one came, and the run ended while it waited for more
    full_run(tmp_path / "runs" / "one")
    for arguments, words in (
        (("attest", "going"), "attest it when it has ended"),
        (("attest", "refused"), "has no round: there is nothing to attest"),
        (("attest", "nothing"), "nothing"),
        (("attest", "one", "--key", "keys/attest.pub"), "public half"),
        (("attest", "one", "--key", "/proc/nowhere/attest.key"), "name another with --key"),
        (("attest", "one", "--out", "/proc/nowhere"), "choose another with --out"),
        (("attest", "one", "--out", "runs/one/run.json"), "choose another with --out"),
        (("attest", "one", "--key", "runs"), "name a file in it with --key, such as runs/attest.key"),
        (("verify", "nowhere.json"), "there is no nowhere.json"),
        (("verify", "runs/one/run.json", "--key", "runs/one/run.json", "--run", "runs/two"), "there is no runs/two"),
        (("verify", "runs/one/run.json", "--key", "nowhere.pub"), "there is no nowhere.pub"),
    ):
        code, said = call(*arguments)
        assert code == 2 and words in said, (arguments, said)
        assert "Traceback" not in said
    assert not (tmp_path / "keys").exists()  # none is made for what cannot be attested
