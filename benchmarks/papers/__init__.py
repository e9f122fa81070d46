"""The papers' claims, one file per paper; ``CLAIMS`` has them by name, in the papers' order."""

from prunella.benchmarks.engine.claim import Claim
from prunella.benchmarks.papers import channel, dgp, fed_ltp, ours, priprune

CLAIMS: dict[str, Claim] = {
    claim.name: claim for claim in (*priprune.CLAIMS, *dgp.CLAIMS, *channel.CLAIMS, *fed_ltp.CLAIMS, *ours.CLAIMS)
}
