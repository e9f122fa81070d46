"""What an attestation says: of stored runs with an ε, without one, unfinished, failed and hostile."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.core.errors import ConfigError, PrunellaError
from prunella.server.attest.statement import Evidence, canonical, digest_of, statement
from prunella.server.checkpoint import LEDGERS, Checkpoint, save, save_ledgers
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore
from tests.server.report.stored import add_audit, full_run, new_run


def section(said: dict[str, Any], title: str) -> str:
    found = next(each for each in said["sections"] if each["title"].startswith(title))
    return json.dumps(found, ensure_ascii=False)


def spend(folder: Path, *epsilons: float | None) -> None:
    tree = {"w": torch.ones(2)}
    ledgers = {str(n): {} if e is None else {"epsilon": e, "delta": 1e-5} for n, e in enumerate(epsilons)}
    save(folder / "checkpoint", Checkpoint(4, tree, {"w": torch.ones(2, dtype=torch.bool)}, {}, {}, ledgers))
    save_ledgers(folder / "checkpoint", ledgers)


def test_a_run_without_an_epsilon_says_so_and_its_attacks_stand_beside_their_controls(tmp_path: Path) -> None:
    full_run(tmp_path, client_noise=0.03)
    said = statement(tmp_path)
    assert said["epsilon"] is None and "No site has an ε" in section(said, "Differential privacy")
    attacks = section(said, "Attacks")
    assert "an image rebuilt" in attacks and "1 of 1" in attacks and "Control, undefended" in attacks
    assert "Do not run this setting" in section(said, "Recommended next step")
    assert "PriPrune: heuristic, no ε" in section(said, "Defenses")


def test_nothing_rebuilt_is_no_proof_and_never_called_safe(tmp_path: Path) -> None:
    full_run(tmp_path)
    said = statement(tmp_path)
    assert "no proof that nothing can be rebuilt" in section(said, "Residual risk")
    text = json.dumps(said).lower()
    assert "safe" not in text.replace("unsafe", "") and "is private" not in text and "compliant" not in text


def test_an_epsilon_without_what_the_sites_have_spent_is_not_attested(tmp_path: Path) -> None:
    full_run(tmp_path)
    spend(tmp_path, 1.0, 2.0)
    statement(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    if Evidence(tmp_path).state.epsilon is None:
        RunStore(tmp_path).append_metrics(4, [row("privacy_epsilon", 2.0, stat="worst")])
    with pytest.raises(ConfigError, match="cannot be attested"):
        statement(tmp_path)


@pytest.mark.parametrize(
    ("run", "own", "words"),
    [
        (0.0, (None, None), "none set"),
        (10.0, (10.0, 10.0), '10, 7"'),
        (10.0, (3.5, 10.0), '3.5, 0.5, at the site with least left"'),
        (0.0, (3.5, None), '3.5, 0.5, at the site with least left; 1 site set none"'),
    ],
)
def test_the_budget_is_that_of_the_site_with_least_left_whoever_set_it(
    tmp_path: Path, run: float, own: tuple[float | None, float | None], words: str
) -> None:
    new_run(tmp_path, settings={"dataset": "digits", "defenses": "dp-sgd", "privacy.epsilon-budget": run})
    spend(tmp_path, 3.0, 3.0)
    budgets = [{} if limit is None else {"epsilon_budget": limit} for limit in own]
    save_ledgers(tmp_path / "checkpoint", {str(n): {"epsilon": 3.0, "delta": 1e-5, **b} for n, b in enumerate(budgets)})
    assert words in section(statement(tmp_path), "Differential privacy")


def test_how_updates_were_added_up_is_said_whether_audits_were_asked_for_or_not(tmp_path: Path) -> None:
    new_run(tmp_path, settings={"dataset": "digits", "aggregation": "secure-sum"})
    assert "secure-sum" in section(statement(tmp_path), "What was trained")


def test_a_run_whose_settings_are_lost_is_not_attested(tmp_path: Path) -> None:
    full_run(tmp_path).write_run(settings={})
    with pytest.raises(ConfigError, match=r"names no settings: restore it"):
        statement(tmp_path)


def test_ledgers_that_are_gone_or_older_than_the_run_s_figures_are_not_attested(tmp_path: Path) -> None:
    """A checkpoint holds what was spent before its round was asked for the next."""
    store = new_run(tmp_path, settings={"dataset": "digits", "defenses": "dp-sgd"})
    spend(tmp_path, 1.0, 2.0)
    statement(tmp_path)
    store.append_metrics(4, [row("privacy_epsilon", 2.5, stat="worst")])
    with pytest.raises(ConfigError, match=r"say ε 2 where metrics.jsonl says 2.5, so that its ε cannot be attested"):
        statement(tmp_path)
    spend(tmp_path, 1.0, 2.5)
    assert statement(tmp_path)["epsilon"]["most"] == 2.5
    (tmp_path / "checkpoint" / LEDGERS).unlink()
    with pytest.raises(PrunellaError, match=r"ledgers.json, what clients have spent, is missing: restore it"):
        statement(tmp_path)


def test_the_headline_s_epsilon_is_that_of_the_ledgers_where_a_round_was_cut_short(tmp_path: Path) -> None:
    store = new_run(tmp_path, settings={"dataset": "digits", "defenses": "dp-sgd", "privacy.delta": 1e-5})
    store.append_metrics(4, [row("privacy_epsilon", 1.5, stat="worst"), row("privacy_epsilon", 1.5, stat="mean")])
    lines = {"0": {"epsilon": 1.5, "epsilon_next": 1.64, "unheard": 1}}
    save_ledgers(tmp_path / "checkpoint", lines)
    add_audit(store, 4, "control", 0.02)
    said = statement(tmp_path)
    assert said["epsilon"] == {"most": 1.64, "delta": 1e-5}
    text = json.dumps(said, ensure_ascii=False)
    assert "Guaranteed: ε 1.64 at" in text and "ε 1.5 " not in text


def test_the_range_over_sites_the_budget_and_the_sites_without_one(tmp_path: Path) -> None:
    settings = {"dataset": "digits", "defenses": "dp-sgd", "privacy.epsilon-budget": 8.0, "privacy.delta": 1e-6}
    new_run(tmp_path, settings=settings)
    spend(tmp_path, 2.0, 5.0, None)
    said = statement(tmp_path)
    text = section(said, "Differential privacy")
    for words in ('most", "5"', 'least", "2"', '"8, 3"', "2 of 3", "1 site had no ε", "1e-06", "not measured"):
        assert words in text, words
    assert said["epsilon"] is None  # the headline's is of all sites or of none
    spend(tmp_path, 2.0, 5.0)
    assert statement(tmp_path)["epsilon"] == {"most": 5.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("ledgers", "words"),
    [
        ({"0": {"channel_nats": 5.0}, "1": {"channel_nats": 3.0}}, "let at most 5 nats through, on the site"),
        (
            {"0": {"channel_nats": 5.0}, "1": {}},
            "let 5 nats or more through, on the site that sent most. 1 site told no",
        ),
        ({"0": {"channel_nats": 5.0}, "1": {"unheard": 2}}, "let 5 nats or more through"),
        ({"0": {"channel_nats": 5.0, "unheard": 1}}, "Answers of 1 site did not come, or their accounts"),
        ({"0": {"channel_nats": 5.0, "anew": 1}}, "5 nats or more"),
    ],
)
def test_nats_are_a_bound_where_every_site_has_one_and_all_answers_came(
    tmp_path: Path, ledgers: dict[str, dict[str, float]], words: str
) -> None:
    new_run(tmp_path, settings={"dataset": "digits", "defenses": "channel-natural"})
    save_ledgers(tmp_path / "checkpoint", ledgers)
    assert words in section(statement(tmp_path), "Differential privacy")


def test_an_attack_that_showed_more_than_was_promised_is_a_warning(tmp_path: Path) -> None:
    store = new_run(tmp_path, settings={"dataset": "digits", "defenses": "dp-sgd"})
    spend(tmp_path, 1.0, 50.0)  # what one site was promised is not what another was
    scores = {"model": {"members": 500, "outsiders": 1000, "auc": 0.95, "strict": 300, "loose": 450}}
    told = {"client": 0, "membership": {"word": "found", "scores": scores}, "scores": None}
    add_audit(store, 4, "membership", 2.0, **told)
    assert statement(tmp_path)["epsilon"] is None, "it stands beside the badge, as an ε that holds"
    text = section(statement(tmp_path), "Differential privacy")
    assert "An attack on client 0 showed more than was promised to it" in text
    assert "client 0" in section(statement(tmp_path), "Membership")


def test_a_membership_question_without_an_answer_was_asked(tmp_path: Path) -> None:
    store = new_run(tmp_path)
    assert "Nobody was asked" in section(statement(tmp_path), "Membership")
    add_audit(store, 4, "membership", 2.0, client=0, scores=None, outcome="failed", reason="the client refused")
    assert "no answer is known" in section(statement(tmp_path), "Membership")


def test_an_attack_that_was_cut_short_is_no_result_in_the_table(tmp_path: Path) -> None:
    store = full_run(tmp_path)
    assert "can show nothing" not in section(statement(tmp_path), "Attacks")
    add_audit(store, 4, "client", 2.0, ok=False, reason="stopped after 600 s")
    assert "not judged; 1 did not finish, or can show nothing" in section(statement(tmp_path), "Attacks")


def test_an_update_that_was_not_explained_is_no_result_in_the_table(tmp_path: Path) -> None:
    store = full_run(tmp_path)
    assert "no more than another image shows" in section(statement(tmp_path), "Attacks")
    for kind in ("control-defended", "client"):
        add_audit(store, 4, kind, 2.0, objective=0.6)
    add_audit(store, 4, "single", 2.0, objective=0.6)
    text = section(statement(tmp_path), "Attacks")
    assert text.count("not judged; the update was not explained in 1 of them") == 2
    assert "no more than another image shows" not in text, "nor of a worst case that was not rebuilt undefended"


def test_what_was_not_tested_is_named(tmp_path: Path) -> None:
    store = full_run(tmp_path)
    add_audit(store, 4, "client", 2.0, outcome="no-consent", scores=None)
    text = section(statement(tmp_path), "What was not tested")
    assert "loki" in text and "plant weights" in text and "denied audits" in text and "shape" in text


def test_a_run_that_goes_on_or_never_began_is_refused(tmp_path: Path) -> None:
    new_run(tmp_path / "a", status="running")
    for folder, words in ((tmp_path / "a", "attest it when it has ended"), (tmp_path / "b", "no run.json")):
        with pytest.raises(ConfigError, match=words):
            statement(folder)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text('{"status": "failed"}')
    with pytest.raises(ConfigError, match="^c has no round: there is nothing to attest"):
        statement(tmp_path / "c")


def test_no_path_is_told_and_digests_are_of_the_files(tmp_path: Path) -> None:
    settings = {"dataset": f"imagefolder:{tmp_path}", "run-dir": str(tmp_path), "defenses": "none"}
    settings |= {"channel-personalized.importance": f"{tmp_path}/alice.npy", "ggl.prior": "bob.pt"}
    settings |= {"channel-natural.kappa": 50.5, "privacy.accountant": "rdp", "learning-rate": 0.1}
    settings |= {"mix.importance": "box:0.375,0.625,0.25,0.75"}
    new_run(tmp_path, settings=settings)
    said = statement(tmp_path)
    assert not any(word in json.dumps(said) for word in ("alice", "bob"))
    assert {key: said["settings"][key] for key in settings if key not in ("dataset", "run-dir")} == {
        **{key: value for key, value in settings.items() if key not in ("dataset", "run-dir")},
        **dict.fromkeys(("channel-personalized.importance", "ggl.prior"), "a local file"),
    }
    assert str(tmp_path) not in json.dumps(said) and "imagefolder, of local files" in section(said, "What was trained")
    assert said["digests"]["run.json"] == digest_of(tmp_path / "run.json") and "audits.jsonl" not in said["digests"]
    assert len(said["digests"]["code"]) == 64


def test_damaged_audits_are_counted(tmp_path: Path) -> None:
    full_run(tmp_path)
    with open(tmp_path / "audits.jsonl", "a") as file:
        file.write('{"kind": "client"}\n')
    assert Evidence(tmp_path).damaged == 1 and "1 audit could not be read" in section(statement(tmp_path), "Attacks")


def test_the_canonical_form_does_not_depend_on_order_and_takes_no_nan() -> None:
    assert canonical({"b": 1, "a": "ε"}) == canonical({"a": "ε", "b": 1}) == '{"a":"ε","b":1}'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))
