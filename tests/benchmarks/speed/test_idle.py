"""Processor time is that of the wait alone, for each SuperNode; a real wait of one SuperNode costs a little."""

from argparse import Namespace

import pytest

from prunella.benchmarks.speed.idle import measure, milli, show


def test_only_what_was_spent_meanwhile_counts() -> None:
    before = {"processor": {"SuperLink": 5.0, "executors": 1.0}}
    after = {"processor": {"SuperLink": 6.0, "executors": 1.0, "SuperNodes": 4.0}}
    assert milli(before, after, 100, 20) == {"SuperLink": 0.5, "executors": 0.0, "SuperNodes": 2.0}


@pytest.mark.federation
def test_a_supernode_that_waits_keeps_no_processor_busy(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(Namespace(supernodes=1, settle=20, seconds=5))
    assert found["milli"]["SuperLink"] > 0 and found["milli"]["SuperNodes"] > 0
    show(found)
    assert "SuperLink" in capsys.readouterr().out
