"""Federated learning that is pruned, defended and honest about what it leaks.

The names below are the public library; importing one imports what it needs, and ``import prunella`` alone imports
nothing. What is neither here nor in a room's ``__init__`` is private and may change.
"""

from pathlib import Path

if not (Path(__file__).parent / "core").is_dir():  # a checkout or an app's bundle: the rooms lie beside this folder
    __path__.append(str(Path(__file__).resolve().parent.parent))
