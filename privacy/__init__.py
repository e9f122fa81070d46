"""Defenses a client applies before anything leaves it, what they claim, and the ledger of what they let through.

A defense is one module, one test and one line here. ``chain.py`` puts them in order and checks what they return.
"""

from privacy.defense import Entry, Registry
from privacy.dgp import DualPruning, dgp
from privacy.none import NoDefense, none

DEFENSES: Registry = {
    "none": Entry("update", NoDefense, none, claim="no defense"),
    "dgp": Entry("update", DualPruning, dgp),
}

# The settings of each defense, by the word before the dot in a flat key: ``dgp.top``.
SECTIONS: dict[str, type] = {name: entry.settings for name, entry in DEFENSES.items() if name != "none"}
