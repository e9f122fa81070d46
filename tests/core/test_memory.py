"""Freed memory is kept: a block used again and again is not new memory each time."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from prunella.core.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else False
torch.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(60):
    torch.ones(2**23)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[bool, int]:
    out = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout
    kept, count = map(int, out.split())
    return bool(kept), count


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_block_that_was_freed_is_used_again() -> None:
    kept, few = faults("kept")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert few * 4 < faults("given back")[1]  # a few blocks against sixty
