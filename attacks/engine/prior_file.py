"""Files of networks learnt from public images, which an attack may use besides a view ("priors").

A prior is safetensors with one JSON line of metadata: the format, which attack it is for, the shape of its images
(C, H, W), the number of classes and its sizes. Nothing is unpickled, and no code but this
project's own is run. Public images are of the same kind as the clients', and none of theirs: a prior learnt from the
images under attack would measure its own memory.

Errors: ``AttackError`` for a file that is missing, of another kind or for other images.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from prunella.core.errors import AttackError
from prunella.core.files import read_tree, write_tree
from prunella.core.trees import Tree
from prunella.tasks.models.layers import Shape

FORMAT = "prunella.prior.v1"
LARGEST = 4096  # of a size in the metadata
Network = TypeVar("Network", bound=nn.Module)


def save_prior(path: Path, kind: str, network: nn.Module, shape: Shape, sizes: dict[str, int]) -> None:
    """Write the network of attack ``kind`` for images of ``shape``, atomically."""
    about = {"format": FORMAT, "kind": kind, "shape": list(shape), "sizes": sizes}
    write_tree(path, dict(network.state_dict()), {"prior": json.dumps(about)})


def read_prior(path: str, kind: str, shape: Shape, maker: str = "") -> tuple[Tree, dict[str, int]]:
    """The weights and sizes of a prior for attack ``kind`` on images of ``shape``. ``maker`` makes such files."""
    maker = maker or f"'prunella prior {kind}'"
    made = f"make one with {maker} and name it with -c {kind}.prior=FILE"
    if not path:
        raise AttackError(f"{kind} needs a network learnt from public images: {made}")
    name = Path(path).name
    try:
        tree, metadata = read_tree(Path(path))
        about = json.loads(metadata.get("prior", "null"))
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else "another kind of file, or a damaged one"
        raise AttackError(f"{name} is not a readable prior ({why}): {made}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise AttackError(f"{name} is a safetensors file, but not a {FORMAT}")
    if about.get("kind") != kind or about.get("shape") != list(shape):
        raise AttackError(f"{name} is a prior for {about.get('kind')!r} on images {about.get('shape')}, "
                          f"not for {kind!r} on {list(shape)}")  # fmt: skip
    sizes = about.get("sizes")
    if not isinstance(sizes, dict) or not all(type(n) is int and 0 < n <= LARGEST for n in sizes.values()):
        raise AttackError(f"the sizes of {name} are not positive integers up to {LARGEST}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tree.values()):
        raise AttackError(f"{name} has weights that are not finite")
    return tree, sizes


def filled(build: Callable[[], Network], tree: Tree, path: str) -> Network:
    """The network of ``build`` with the weights of a prior, in evaluation mode and without gradients.

    Its sizes come from a file: no memory is taken for them, only for the weights that are there.
    """
    with torch.device("meta"):
        network = build()
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in tree.items()}, assign=True)
    except RuntimeError:
        raise AttackError(f"{Path(path).name} does not have the weights its sizes name") from None
    return network.eval().requires_grad_(False)
