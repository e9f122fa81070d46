"""``python -m prunella.benchmarks NAME …``: the ``main`` of a module here, imported when Ctrl-C can end it in one line.

python -m prunella.benchmarks reproduce D3
python -m prunella.benchmarks advise.command --budget 10min
"""

import sys
from importlib import import_module

from prunella.core.interrupts import end_at_once

if __name__ == "__main__":
    end_at_once()
    sys.exit(import_module(f"{__package__}.{sys.argv[1]}").main(sys.argv[2:]))
