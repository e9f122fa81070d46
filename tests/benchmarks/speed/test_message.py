"""The costs are those of the lines that the zygote and its templates write."""

from prunella.benchmarks.speed.message import costs, show

LOG = """\
ready, single-threaded
flwr-clientapp of client-exec-0, of the zygote: 0.500 s, 540 MiB at most
messages of bundle 0123abcd are forked from a template
flwr-clientapp of client-exec-0, of the template: 0.100 s, 530 MiB at most
flwr-clientapp of client-exec-1, of the template: 0.300 s, 550 MiB at most
flwr-clientapp of client-exec-1, of the template: 0.110 s, 520 MiB at most
"""


def test_each_kind_of_fork_has_its_median_and_its_largest() -> None:
    found = costs(LOG, 500)
    assert found["zygote"] == {"messages": 1, "seconds": 0.5, "most": 0.5, "above torch": 40}
    assert found["template"] == {"messages": 3, "seconds": 0.11, "most": 0.3, "above torch": 50}
    assert costs("", 0) == {}
    show({"forked from": found})
