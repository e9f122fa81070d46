import torch

from prunella.attacks.engine.case import ASKED, WENT_ON, Found
from prunella.attacks.engine.choice import Gain, chosen
from prunella.core.types import Reconstruction


def test_public_images_decide_where_nothing_explains_the_update() -> None:
    def found(by: str, missed: float, stage: str = ASKED) -> Found:
        return Found(by, Reconstruction(torch.zeros(1, 1, 8, 8), None, missed, 1), None, missed, stage)

    fitted, true, learnt = found("fitted", 0.2), found("true", 0.4), found("learnt", float("inf"))
    further = found("true", 0.3, WENT_ON)
    psnr = {("fitted", ASKED): 9.0, ("true", ASKED): 15.0, ("true", WENT_ON): 14.0, ("learnt", ASKED): 20.0}
    gains = {key: Gain(value) for key, value in psnr.items()}
    assert chosen([fitted, true], {}) is fitted and chosen([fitted, true], gains) is true
    assert chosen([fitted, true, further], gains) is true  # who went on fits better, and is worse on public images
    assert chosen([fitted, true, learnt], gains) is learnt
    explaining = found("fitted", 1e-6)
    assert chosen([explaining, true, learnt], gains) is explaining
    assert chosen([explaining, true, learnt], gains, doubted=True) is learnt  # what explains is the noisy image
    assert chosen([explaining, learnt], {learnt.key: Gain(20.0)}, doubted=True) is learnt  # rehearsed or not
    solved = {**gains, true.key: Gain(15.0, 0.1)}  # who got to the bottom there, and did not here
    assert chosen([fitted, true], solved) is fitted and chosen([fitted, found("true", 0.3)], solved) is not fitted
    unasked = found("label search", 0.004)  # its place on public images is not known, and it is as good as solved here
    assert chosen([fitted, true, unasked], gains) is unasked and chosen([unasked, true, learnt], gains) is unasked
    assert chosen([fitted, true, found("label search", 0.1)], gains) is true
    stuck = found(
        "searched", 0.05, WENT_ON
    )  # solved there when it had gone on, and no further here than its first round
    rounds = {("searched", ASKED): Gain(16.0, 0.06), ("searched", WENT_ON): Gain(40.0, 1e-9)}
    assert chosen([stuck, true], {**gains, **rounds}) is stuck
    near, far = found("searched", 0.01), found("other", 0.06)
    both = {("searched", ASKED): Gain(16.0, 0.09), ("other", ASKED): Gain(18.0, 0.06)}
    assert chosen([near, far], both) is near  # 7 dB nearer than it was there
    nearly = {**gains, true.key: Gain(15.0, 1e-9)}
    assert chosen([fitted, found("true", 0.005)], nearly).by == "true"  # both are as good as solved
