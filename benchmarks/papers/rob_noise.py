"""Gaussian noise under Rob, at the scale of the planted module that the server chooses.

A cell is one deviation of the noise on every coordinate, and one of two models that are the same function: with the
imprint module as this project draws it, and with encode made smaller and decode larger by 2^20 (``attacks.rob``). The
batches are those of ``defended``.
"""

from prunella.benchmarks.engine.claim import Claim, Plot, declared
from prunella.benchmarks.papers.defended import DEFENDED, behind, inverting

MODULES = (("cnn", 1e-2), ("cnn", 1e-5), ("cnn", 1e-7), ("amplified_cnn", 1e-2))
CELLS = tuple(
    {
        **behind(
            inverting(f"prunella.attacks.rob:{module}", "rob", 8, 8),
            "cifar10",
            "gaussian",
            {"gaussian.deviation": deviation},
        ),
        "architecture": module.replace("_", " "),
        "value": deviation,
    }
    for module, deviation in MODULES
)
ROB_NOISE: Claim = declared(
    """rob-noise | Prunella | docs/results/DGP.md | what Rob rebuilds behind Gaussian noise, at two scales of its module
    small: One batch of 8 CIFAR-10 images a seed, untrained weights; D1's are the same batches.
    * DGP's Table 1 has an SSIM of 0.899 behind a deviation of 0.01.""",
    DEFENDED,
    "architecture value: attack",
    "ssim 3 SSIM; psnr 1 PSNR in dB; rebuilt 2 images from 20 dB; answered 2 answered",
    Plot(("ssim",), split=0),
    small=CELLS,
)
