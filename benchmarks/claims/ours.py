"""What this project claims beyond the papers."""

from benchmarks.claims.claim import Claim

PAPER = "Prunella"
CLAIMS = (
    Claim(
        "X1",
        PAPER,
        "docs",
        "the mask-aware attack rebuilds more than the plain one under every pruning defense; hiding the mask helps",
        "nothing published",
        missing="benchmarks.leakage measures it, not yet declared as a claim",
    ),
    Claim(
        "X2",
        PAPER,
        "docs",
        "a data defense and an update defense together leak less than either",
        "nothing published",
        missing="benchmarks.leakage has one such chain, not yet declared as a claim",
    ),
    Claim(
        "X3",
        PAPER,
        "docs",
        "what a pruning mask alone tells of the data",
        "nothing published",
        missing="the attack on masks alone does not exist yet",
    ),
)
