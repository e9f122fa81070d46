"""Defenses a client applies before anything leaves it, what they claim, and the ledger of what they let through.

A defense is one module, one test and one line of ``DEFENSES``, or somebody's own by import path (``find_defense``).
``chain.py`` applies them in order and checks what they return.

Four papers are cited by abbreviation in all of this project:
PRI  PriPrune: Quantifying and Preserving Privacy in Pruned Federated Learning (arXiv 2310.19958)
LTP  Fed-LTP: lottery tickets with differential privacy
DGP  Revisiting Gradient Pruning: A Dual Realization for Defending against Gradient Attacks
CHN  Defending Against Data Reconstruction Attacks in Federated Learning: An Information Theory Approach
"As printed" is a formula as the paper has it; "[erratum]" marks where we believe that it is wrong.
"""

from collections.abc import Iterable
from dataclasses import fields, replace

from prunella.core.errors import ConfigError, with_article
from prunella.core.foreign import lookup
from prunella.privacy.accounting import Privacy
from prunella.privacy.adgp import AlignedPruning, adgp
from prunella.privacy.ats import TransformationSearch, ats
from prunella.privacy.channel import NaturalChannel, natural_channel
from prunella.privacy.channel_personalized import PersonalizedChannel, personalized_channel
from prunella.privacy.channel_white import WhiteChannel, white_channel
from prunella.privacy.defense import HEURISTIC, STAGES, Entry, Registry
from prunella.privacy.dgp import DualPruning, dgp
from prunella.privacy.dp_fed import DpFed, dp_fed
from prunella.privacy.dp_psac import DpPsac, dp_psac
from prunella.privacy.dp_sgd import DpSgd, dp_sgd
from prunella.privacy.fed_ltp import FedLtp, fed_ltp
from prunella.privacy.fed_spa import FedSpa, fed_spa
from prunella.privacy.fixed_rate import FixedRate, MixedRate, largest, mix, random
from prunella.privacy.gaussian import GaussianNoise, gaussian
from prunella.privacy.leakage_guard import LeakageGuard, leakage_guard
from prunella.privacy.mask_hiding import MaskHiding, mask_hiding
from prunella.privacy.none import NoDefense, none
from prunella.privacy.outpost import Outpost, outpost
from prunella.privacy.precode import Precode, precode
from prunella.privacy.priprune import PriPrune, priprune
from prunella.privacy.soteria import Soteria, soteria
from prunella.privacy.top_k import TopK, top_k

CHANNEL = "at most kappa * batch nats per step"
EPSILON = "(ε, δ)-DP of the training, one example present or replaced by nothing, Poisson sampling"

DEFENSES: Registry = {
    "none": Entry("update", NoDefense, none, claim="no defense"),
    "channel-natural": Entry("data", NaturalChannel, natural_channel, claim=CHANNEL),
    "channel-white": Entry("data", WhiteChannel, white_channel, claim=CHANNEL),
    "channel-personalized": Entry("data", PersonalizedChannel, personalized_channel, claim=CHANNEL),
    "ats": Entry("data", TransformationSearch, ats, transforms=True),
    "gaussian": Entry("gradient", GaussianNoise, gaussian, noisy=True),
    "soteria": Entry("gradient", Soteria, soteria),
    "precode": Entry("gradient", Precode, precode, claim=f"{HEURISTIC}; part of the model"),
    "outpost": Entry("gradient", Outpost, outpost),
    "dp-sgd": Entry("gradient", DpSgd, dp_sgd, EPSILON, noisy=True, private=True),
    "dp-psac": Entry("gradient", DpPsac, dp_psac, EPSILON, noisy=True, private=True),
    "dp-fed": Entry("gradient", DpFed, dp_fed, EPSILON, noisy=True, private=True),
    "fed-ltp-client": Entry("gradient", FedLtp, fed_ltp, EPSILON, noisy=True, private=True),
    "fed-spa": Entry("gradient", FedSpa, fed_spa, EPSILON, noisy=True, private=True),
    "top-k": Entry("update", TopK, top_k),
    "dgp": Entry("update", DualPruning, dgp),
    "adgp": Entry("update", AlignedPruning, adgp),
    "largest": Entry("update", FixedRate, largest),
    "random": Entry("update", FixedRate, random),
    "mix": Entry("update", MixedRate, mix),
    "priprune": Entry("update", PriPrune, priprune, small=True),
    "mask-hiding": Entry("update", MaskHiding, mask_hiding, fills=True),
    "leakage-guard": Entry("update", LeakageGuard, leakage_guard, noisy=True, guards=True),
}


def find_defense(name: str) -> Entry:
    """The line of ``DEFENSES``, or somebody's own by import path (``core.foreign``), whose claim is replaced by
    ``HEURISTIC``.

    Raises ``ConfigError`` for an unknown name, and for somebody's own defense of a stage that there is not, or that is
    ``private`` or ``guards``: other code of this release has to know those two kinds.
    """
    if name in DEFENSES:
        return DEFENSES[name]
    found = lookup("defense", name, DEFENSES)
    if not isinstance(found, Entry):
        raise ConfigError(f"defense {name!r} is {with_article(found)}, not a prunella.privacy.defense.Entry")
    if found.private or found.guards:
        raise ConfigError(f"defense {name!r} is marked private or guards: only a defense of this release can be")
    if found.stage not in STAGES:
        raise ConfigError(f"defense {name!r} is of the stage {found.stage!r}: it is one of {', '.join(STAGES)}")
    return replace(found, claim=HEURISTIC)


def transforms(names: Iterable[str]) -> bool:
    """Whether a defense of this release trains on images that show what the client's own do in another form."""
    return any(name in DEFENSES and DEFENSES[name].transforms for name in names)


# The settings of each defense, by the word before the dot in a flat key: ``dgp.top``.
SECTIONS: dict[str, type] = {name: entry.settings for name, entry in DEFENSES.items() if fields(entry.settings)}
SECTIONS["privacy"] = Privacy
