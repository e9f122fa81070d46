from pathlib import Path

import pytest

from prunella.server.store.read import read_audits, read_lines, read_metrics, read_run
from prunella.server.store.schema import StoreError, row
from prunella.server.store.write import RunStore


def test_a_run_that_wrote_nothing_yet_reads_as_empty(tmp_path: Path) -> None:
    assert read_run(tmp_path) == {} and read_metrics(tmp_path) == read_audits(tmp_path) == []


ODD = ['{"classes": "ten"}', '{"test_examples": -1}', '{"largest_class": [1]}', '{"model_parameters": true}']
ODD += ['{"settings": {"rounds": "x"}}', '{"claims": 5}']


@pytest.mark.parametrize("text", ["[1", "5", "null", "[]", "", '{"settings": "x"}', '{"versions": null}', *ODD])
def test_a_run_json_that_is_damaged_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=rf"{tmp_path}/run.json is not a JSON object.*: restore it, or remove the run"):
        read_run(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    for name, read in (("run.json", read_run), ("metrics.jsonl", read_metrics), ("audits.jsonl", read_audits)):
        (tmp_path / name).mkdir()
        with pytest.raises(StoreError, match=rf"{name} cannot be read .*: restore it, or remove the run"):
            read(tmp_path)


@pytest.mark.parametrize(
    "bad", ["5", "null", "{}", '{"round": "a", "metric": "loss", "labels": {}, "value": 1}', '{"round": 1}']
)
def test_a_line_that_no_run_writes_is_an_error_that_names_file_and_fix(bad: str, tmp_path: Path) -> None:
    good = '{"round": 1, "time": 0.5, "metric": "loss", "labels": {}, "value": 1}'
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n\n{good}\n")
    assert len(read_metrics(tmp_path)) == 2
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n\n{bad}\n{good}\n")
    with pytest.raises(StoreError, match=rf"{tmp_path}/metrics.jsonl: line 3 is not .*: restore it, or remove the run"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "true", '"2.5"', "null", "[1]"])
def test_a_value_that_is_no_finite_number_is_no_line(value: str, tmp_path: Path) -> None:
    """An ε of NaN was told as one under 0.001, an accuracy of NaN as that of a model that learned."""
    line = f'{{"round": 1, "time": 0.5, "metric": "accuracy_ratio", "labels": {{}}, "value": {value}}}\n'
    (tmp_path / "metrics.jsonl").write_text(line)
    with pytest.raises(StoreError, match="line 1 is not"):
        read_metrics(tmp_path)


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"round":1}\n{"rou\n{"round":3}\n')
    with pytest.raises(StoreError, match=r"metrics.jsonl: line 2"):
        read_lines(file)


def test_of_what_was_spent_in_a_round_the_last_word_is_read(tmp_path: Path) -> None:
    store = RunStore.open(tmp_path / "run")
    for spent in (1.5, 1.2):  # when clients are asked, and when their answers are in
        store.append_metrics(2, [row("privacy_epsilon", spent, stat="worst"), row("loss", spent)])
    store.append_metrics(3, [row("privacy_epsilon", 1.8, stat="worst")])
    told = [(line["round"], line["metric"], line["value"]) for line in read_metrics(store.path)]
    assert told == [(2, "loss", 1.5), (2, "privacy_epsilon", 1.2), (2, "loss", 1.2), (3, "privacy_epsilon", 1.8)]
