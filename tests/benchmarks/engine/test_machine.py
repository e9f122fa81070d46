import os

from prunella.benchmarks.engine.machine import machine


def test_the_machine_is_told_without_names_of_hosts() -> None:
    told = machine()
    assert told["processors"] == os.cpu_count() and told["threads"] >= 1
    assert os.uname().nodename not in [str(value) for value in told.values()]
