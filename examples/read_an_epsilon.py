# %% [markdown]
# # What does an ε say, and what changes it?
# ε bounds how much the presence of one example changes the probability of anything the server sees: by a factor of
# e^ε at most, up to δ. It is proven, so it holds against any attack; no attack can show that it is small enough.

# %%
import math

from prunella.privacy.accounting import Charge, epsilon

DELTA = 1e-5


def spent(rounds: int, noise: float, sampling: float) -> float:
    """ε of DP-SGD: 8 steps a round, each with this noise multiplier, on a Poisson sample of that probability."""
    return epsilon([Charge("run", noise=noise, steps=8 * rounds, sampling=sampling)], DELTA, "rdp")


# %% More rounds cost more, but less than in proportion.
for rounds in (1, 10, 100):
    print(f"{rounds:>3} rounds at noise 1 and a batch of 2 %: ε {spent(rounds, 1.0, 0.02):.2f}")

# %% More noise, or smaller batches of the same data, cost less.
for noise in (0.7, 1.0, 2.0):
    print(f"noise {noise}: ε {spent(10, noise, 0.02):.2f}; with half the batch {spent(10, noise, 0.01):.2f}")

# %% What a value means for one person: how sure of a membership an attacker can get who thought it even.
for value in (0.1, 1.0, 3.0, 8.0):
    print(f"ε {value}: at most {math.exp(value) / (1 + math.exp(value)):.2%} sure, up to δ")
assert spent(100, 1.0, 0.02) < 10 * spent(10, 1.0, 0.02) and spent(10, 2.0, 0.02) < spent(10, 1.0, 0.02)
