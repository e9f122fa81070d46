"""``python -m prunella.benchmarks NAME …``: the ``main`` of a module here, imported when Ctrl-C can end it in one line.

python -m prunella.benchmarks reproduce D3
python -m prunella.benchmarks advise.command --budget 10min
"""

import errno
import os
import sys
from importlib import import_module

from prunella.core.interrupts import end_at_once

NAMES = ("reproduce", "advise.command")


def run(name: str, arguments: list[str]) -> int:
    """The module's exit code; 1 where what it says cannot be written, as to a full disk, or is read no more."""
    try:
        code: int = import_module(f"{__package__}.{name}").main(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            from prunella.deploy.console.terminal import about_disk

            print(f"prunella: {about_disk(error)}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        return 1
    return code


if __name__ == "__main__":
    end_at_once()
    if sys.argv[1:2] not in ([name] for name in NAMES):
        print(f"python -m prunella.benchmarks needs a name: {' or '.join(NAMES)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(sys.argv[1], sys.argv[2:]))
