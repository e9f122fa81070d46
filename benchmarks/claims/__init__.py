"""The papers' claims, one file per paper; ``CLAIMS`` has them by name, in the papers' order."""

from benchmarks.claims import channel, dgp, fed_ltp, ours, priprune
from benchmarks.claims.claim import Claim

CLAIMS: dict[str, Claim] = {
    claim.name: claim for claim in (*priprune.CLAIMS, *dgp.CLAIMS, *channel.CLAIMS, *fed_ltp.CLAIMS, *ours.CLAIMS)
}
