from prunella.attacks import ATTACKS
from prunella.attacks.score.control import PSNR_FLOOR, undefended_view
from prunella.attacks.score.leakage import score
from prunella.core.randomness import stream

ATTACK = ATTACKS["dlg"]


def test_rebuilds_an_undefended_image_and_not_another(task, fresh, same_label) -> None:
    truth, other = same_label
    seen = undefended_view(task, *fresh, truth)
    reconstruction = ATTACK.reconstruct(seen, task, ATTACK.settings(), stream(0, purpose="attack"))
    right, wrong = score(reconstruction, truth), score(reconstruction, other)
    assert right.psnr.mean >= PSNR_FLOOR and right.label_accuracy == 1.0
    assert right.psnr.mean > wrong.psnr.mean + 6 and right.ssim.mean > wrong.ssim.mean  # told apart at one label
    assert right.psnr.mean > max(right.psnr.random, right.psnr.other) + 6
