"""Rows for alerts of what several figures say together."""

import pytest

from prunella.server.doubts import diverged_rows, measured_rows
from prunella.tasks.training import Evaluation
from tests.server.store.test_rows import values


@pytest.mark.parametrize(("loss", "on_server", "shown"), [
    (2.3, True, 0.0), (4.7, True, 1.0), (float("inf"), True, 1.0), (float("nan"), True, 1.0),
    (4.7, False, 1.0), (float("nan"), False, None),
])  # fmt: skip
def test_divergence_is_what_the_report_calls_so_and_unknown_where_clients_tell_no_loss(
    loss: float, on_server: bool, shown: float | None
) -> None:
    rows = values(diverged_rows(Evaluation(loss, 0.1, 10), 10, on_server))
    assert rows == ({} if shown is None else {("model_diverged",): shown})
    assert diverged_rows(None, 10, on_server) == []


TOLD = {"members": 200, "outsiders": 1000, "auc": 0.9, "strict": None, "loose": 150}
MEMBERSHIP = {"kind": "membership", "outcome": "scored", "membership": {"word": "found", "scores": {"model": TOLD}}}


@pytest.mark.parametrize(("epsilons", "over"), [((3.0, 9.0), 1.0), ((9.0, 9.0), 0.0), ((None, 9.0), None)])
def test_more_measured_than_promised_is_counted_by_client_and_known_only_of_both(
    epsilons: tuple[float | None, float], over: float | None
) -> None:
    ledgers = {str(n): {} if each is None else {"epsilon": each} for n, each in enumerate(epsilons)}
    rows = values(measured_rows([{**MEMBERSHIP, "client": 0}], ledgers, {}))
    assert rows["privacy_epsilon_measured",] == pytest.approx(3.54, abs=0.01)
    assert rows.get(("privacy_epsilon_exceeded",)) == over
    assert measured_rows([{**MEMBERSHIP, "client": 0, "outcome": "failed"}], ledgers, {}) == []


def test_telling_a_batch_from_the_rest_refutes_no_epsilon_that_sampling_amplified() -> None:
    """One step of noise 0.7 at a rate of 0.005 costs ε 0.4, and whoever sees it may tell its batch at an ε of 7. With
    noise 5 nothing may tell batches as well as these scores do."""
    of_updates = {"word": "found", "scores": dict.fromkeys(("local", "drop", "alignment"), TOLD)}
    line = {**MEMBERSHIP, "client": 0, "membership": of_updates}
    for noise, over in ((0.7, 0.0), (5.0, 1.0)):
        for defenses in ("dp-sgd", " dp-sgd, top-k,"):
            raw = {"defenses": defenses, "dp-sgd.noise-multiplier": noise}
            rows = values(measured_rows([line], {"0": {"epsilon": 0.4, "steps": 1.0}}, raw))
            assert rows == {("privacy_epsilon_exceeded",): over}
    assert measured_rows([line], {"0": {"epsilon": 0.4, "steps": 1.0}}, {"defenses": "my_module:DEFENSE"}) == []
