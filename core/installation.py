"""Where this code is: a checkout or an app's bundle has the packages beside the folder ``prunella``, else inside it."""

from pathlib import Path

import prunella

IMPORT_ROOT = Path(prunella.__file__).resolve().parent.parent  # what ``PYTHONPATH`` needs for ``import prunella``
ROOMS = Path(prunella.__path__[-1]).resolve()  # the folder that has ``core``, ``client`` and the others
