import dataclasses

import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import PSNR_FLOOR, undefended_view
from prunella.attacks.score.leakage import score
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask
from prunella.privacy.dgp import dual_mask


def test_beats_the_mask_unaware_attack_on_a_sparsified_update(task, fresh, batch) -> None:
    """DGP's shares: per layer the largest 5 % and the smallest 75 % are zero. Mean over images, not one."""
    psnr: dict[str, float] = {"sgi": 0.0, "ig": 0.0}
    for i in range(4):
        truth = batch(i, 1)
        view = undefended_view(task, *fresh, truth)
        shared = {
            name: dual_mask(u, torch.ones_like(u, dtype=torch.bool), 0.05, 0.75) for name, u in view.update.items()
        }
        sparse = dataclasses.replace(view, update=apply_mask(view.update, shared))
        for name in psnr:
            attack = dataclasses.replace(ATTACKS[name].settings(), labels_tried=1, restarts=1, iterations=150)
            found = ATTACKS[name].reconstruct(sparse, task, attack, stream(i, purpose="attack"))
            psnr[name] += score(found, truth).psnr.mean / 4
    assert psnr["sgi"] > PSNR_FLOOR and psnr["sgi"] > psnr["ig"] + 5
