"""The papers' claims, ``CLAIMS`` by name in the papers' order, and ``TABLES`` that stand elsewhere in docs."""

from prunella.benchmarks.engine.claim import Claim
from prunella.benchmarks.papers import channel_claims, dgp_claims, fed_ltp_claims, priprune_claims
from prunella.benchmarks.papers.adapted_attacks import ADAPTED, ORDERINGS, PUBLIC
from prunella.benchmarks.papers.epsilon_games import EPSILON_TABLE
from prunella.benchmarks.papers.every_round import EVERY_ROUND
from prunella.benchmarks.papers.local_steps import LOCAL_STEPS
from prunella.benchmarks.papers.masked_sums import MASKED_SUMS
from prunella.benchmarks.papers.membership_table import MEMBERSHIP_TABLE
from prunella.benchmarks.papers.norm_modes import NORM_MODES
from prunella.benchmarks.papers.planted_models import PLANTED_TABLE
from prunella.benchmarks.papers.scheme_table import MANY_CLIENTS, SCHEME_TABLE
from prunella.benchmarks.papers.strongest import STRONGEST
from prunella.benchmarks.papers.width_table import WIDTH_TABLE
from prunella.benchmarks.scenarios import ours
from prunella.benchmarks.scenarios.board import BOARD, DEFENSES, MODELS

PAPERS = (priprune_claims, dgp_claims, channel_claims, fed_ltp_claims, ours)
CLAIMS: dict[str, Claim] = {claim.name: claim for paper in PAPERS for claim in paper.CLAIMS}
_AUDITS = (ORDERINGS, ADAPTED, PUBLIC, EVERY_ROUND, STRONGEST, NORM_MODES, LOCAL_STEPS, MASKED_SUMS)
_SCHEMES = (SCHEME_TABLE, MANY_CLIENTS, WIDTH_TABLE)
_TABLES = (DEFENSES, MODELS, EPSILON_TABLE, MEMBERSHIP_TABLE, PLANTED_TABLE, *_SCHEMES, *_AUDITS, BOARD)
TABLES: dict[str, Claim] = {table.name: table for table in _TABLES}
