import pytest
import torch
from torch import nn

from prunella.core.errors import ConfigError
from prunella.tasks.models.vit import BLOCKS, HEADS, WIDTH, VisionTransformer, vit


def encoder(model: VisionTransformer) -> nn.Module:
    """PyTorch's own blocks, with the weights of ``model``."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
    own = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
    state = {}
    for number, block in enumerate(model.blocks):
        (norm, attention), (norm2, first, _, second) = block.attention, block.each
        for kind in ("weight", "bias"):
            inward = [getattr(part, kind) for part in (attention.query, attention.key, attention.value)]
            state[f"layers.{number}.self_attn.in_proj_{kind}"] = torch.cat(inward)
            for name, part in {"self_attn.out_proj": attention.out, "norm1": norm, "norm2": norm2}.items():
                state[f"layers.{number}.{name}.{kind}"] = getattr(part, kind)
            for name, part in {"linear1": first, "linear2": second}.items():
                state[f"layers.{number}.{name}.{kind}"] = getattr(part, kind)
    own.load_state_dict(state)
    return own


def test_the_blocks_are_pytorchs_and_the_logits_come_of_the_class_token():
    torch.manual_seed(0)
    model = vit((3, 8, 8), 7)
    x = torch.rand(2, 3, 8, 8)
    patches = model.patches(x).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.token.expand(2, -1, -1), patches], dim=1) + model.places
    torch.testing.assert_close(model(x), model.head(encoder(model)(tokens)[:, 0]))


def test_a_patch_is_four_pixels_wide_and_stands_in_its_place():
    torch.manual_seed(0)
    x = torch.rand(1, 1, 8, 8)
    moved = x.roll(4, dims=3)
    model = vit((1, 8, 8), 3)
    assert not torch.allclose(model(x), model(moved))
    nn.init.zeros_(model.places)
    torch.testing.assert_close(model(x), model(moved))


def test_it_has_the_printed_number_of_weights(parameters):
    assert parameters(vit, (3, 32, 32), 10) == 142_026


def test_sides_that_are_no_whole_patches_are_refused():
    with pytest.raises(ConfigError, match="30x32 are no whole patches of 4x4"):
        vit((1, 30, 32), 10)
