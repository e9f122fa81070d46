"""Our codec beside the public ones on one update: ``mask + X`` is our mask, and the kept values as X codes them.

ZipNN 0.5.4 and blosc2 4.14.1 run where they can be imported, which nothing of this project asks for. ZipNN runs at its
defaults for float32. blosc2 runs at its defaults but for the size of a number (zstd at level 5 after a byte shuffle),
at zstd's level 1, and with lz4 after a bit shuffle, the faster ones of its settings that still compress. All run on
one thread and return the same two trees, which is checked, bit for bit.

A whole message is the update's tensors and mask to bytes and back; ``bound`` and ``memcpy`` are those of
``speed.wire``. The peers gather and scatter kept values as our codec does, over the same pieces; ours does so while it
codes a frame, and finds the kept coordinates once for mask and values, which is part of what a codec of its own is for.
``values`` times the coders alone, on the kept values in one piece, as a share of the speed of a memcpy of these. Time
is the processor's, arms in turns, the median over turns and the range: on a shared machine that says more than a clock.

    pip install zipnn==0.5.4 blosc2==4.14.1    # into an environment of its own
    python -m prunella.benchmarks.speed.codecs [--data DIRECTORY_OF_CIFAR10] [--model resnet18] [--kind magnitude]
"""

import struct
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from prunella.benchmarks.speed.bench import Work, command, importable, show_table, turns
from prunella.benchmarks.speed.updates import KINDS, LocalTraining, Update, examples, real_update
from prunella.benchmarks.speed.wire import DATA, bound
from prunella.core.parallel import each, threads
from prunella.core.trees import Mask, Tree, count, size
from prunella.wire.coding import Reader, pack_numbers, places_of, prefixed, unpack_numbers
from prunella.wire.encode import decode, decode_mask, encode, encode_mask
from prunella.wire.layout import FRAME, Numbers, Piece, flat_bits, flat_numbers, frames_of
from prunella.wire.sparse import zeros

PACKAGES = {"zipnn": "zipnn==0.5.4", "blosc2": "blosc2==4.14.1"}
OURS = "prunella"
MESSAGE, VALUES = ("encode", "decode"), ("pack", "unpack")
_LENGTH = struct.Struct("<I")


class ValueCoder(NamedTuple):
    """Kept values, int32 [n] of float32's bits, to bytes and back."""

    encode: Callable[[Numbers], bytes]
    decode: Callable[[bytes, int], Numbers]


def _ours() -> ValueCoder:
    """Our planes, over as many values at a time as a frame has at 80 % removed."""
    some = FRAME // 5

    def pack(values: Numbers) -> bytes:
        parts = each(lambda at: prefixed(pack_numbers(values[at : at + some])), range(0, values.size, some))
        return b"".join([piece for part in parts for piece in part])

    def unpack(data: bytes, size: int) -> Numbers:
        whole, reader = np.empty(size, np.int32), Reader(data)
        frames = [(at, Reader(reader.take(reader.length()))) for at in range(0, size, some)]

        def fill(frame: tuple[int, Reader]) -> None:
            at, rest = frame
            out = whole[at : at + some]
            unpack_numbers(rest, out.size, 4, "values", out)

        each(fill, frames)
        return whole

    return ValueCoder(pack, unpack)


def _zipnn() -> ValueCoder:
    from zipnn import ZipNN

    coder = ZipNN(bytearray_dtype="float32", threads=threads())
    return ValueCoder(
        lambda values: bytes(coder.compress(values.tobytes())),
        lambda data, size: np.frombuffer(coder.decompress(data), np.int32, size),
    )


def _blosc2(codec: str, level: int, shuffle: str) -> ValueCoder:
    import blosc2

    settings = {
        "typesize": 4,
        "codec": blosc2.Codec[codec],
        "clevel": level,
        "filters": [blosc2.Filter[shuffle]],
        "nthreads": threads(),
    }
    return ValueCoder(
        lambda values: bytes(blosc2.compress2(values, **settings)),
        lambda data, size: np.frombuffer(blosc2.decompress2(data, nthreads=threads()), np.int32, size),
    )


PEERS: dict[str, tuple[str, Callable[[], ValueCoder]]] = {
    "zipnn": ("zipnn", _zipnn),
    "blosc2, its defaults": ("blosc2", lambda: _blosc2("ZSTD", 5, "SHUFFLE")),
    "blosc2, zstd 1": ("blosc2", lambda: _blosc2("ZSTD", 1, "SHUFFLE")),
    "blosc2, lz4 on bits": ("blosc2", lambda: _blosc2("LZ4", 5, "BITSHUFFLE")),
}


def _pieces(like: Tree | Mask) -> list[Piece]:
    sizes = {name: tensor.numel() for name, tensor in like.items()}
    return [piece for frame in frames_of(sizes, dict.fromkeys(sizes, "f4")) for piece in frame]


def gathered(tree: Tree, mask: Mask) -> Numbers:
    """The kept values of a float32 tree, one tensor behind the other in sorted order."""
    numbers = {name: flat_numbers(tensor) for name, tensor in tree.items()}
    bits = {name: flat_bits(flags) for name, flags in mask.items()}

    def kept(piece: Piece) -> Numbers:
        return piece.of(numbers).take(places_of(piece.of(bits)), mode="wrap")

    return np.concatenate(each(kept, _pieces(tree)))


def scattered(values: Numbers, mask: Mask) -> Tree:
    """The dense tree again, zero outside the mask, in memory that is asked for as our codec asks for it."""
    sizes = {name: flags.numel() for name, flags in mask.items()}
    numbers = zeros(sizes, dict.fromkeys(sizes, 4))
    bits = {name: flat_bits(flags) for name, flags in mask.items()}
    pieces = _pieces(mask)
    places = each(lambda piece: places_of(piece.of(bits)), pieces)
    ends = np.cumsum([at.size for at in places])

    def put(number: int) -> None:
        at = places[number]
        pieces[number].of(numbers)[at] = values[ends[number] - at.size : ends[number]]

    each(put, range(len(pieces)))
    return {name: torch.from_numpy(numbers[name]).view(torch.float32).reshape(mask[name].shape) for name in mask}


def composed(coder: ValueCoder, tree: Tree, mask: Mask) -> bytes:
    """Our mask, then the values as ``coder`` has them."""
    flags = encode_mask(mask)
    return b"".join([_LENGTH.pack(len(flags)), flags, coder.encode(gathered(tree, mask))])


def taken_apart(coder: ValueCoder, blob: bytes, like: Tree) -> tuple[Tree, Mask]:
    """What ``composed`` was given."""
    reader = Reader(blob)
    mask = decode_mask(bytes(reader.take(reader.length())), like)
    return scattered(coder.decode(bytes(reader.take(len(blob) - reader.at)), count(mask)), mask), mask


class CodecArm(NamedTuple):
    """One codec on one update: how a message is made, and what of it; and the same of the values alone."""

    encode: Work
    decode: Callable[[], tuple[Tree, Mask]]
    pack: Work
    unpack: Work
    size: int


def _arm(name: str, coder: ValueCoder, update: Update, values: Numbers) -> CodecArm:
    """Raises ``ValueError`` where the update that comes back is not the one that was given."""
    tree, mask = update.update, update.shared
    make = partial(encode, tree, mask) if name == OURS else partial(composed, coder, tree, mask)
    blob, coded = make(), coder.encode(values)
    back = partial(decode, blob, tree) if name == OURS else partial(taken_apart, coder, blob, tree)
    found, flags = back()
    if not all(torch.equal(found[n], tree[n]) and torch.equal(flags[n], mask[n]) for n in tree):
        raise ValueError(f"{name}: the round trip is not exact")
    return CodecArm(make, back, partial(coder.encode, values), partial(coder.decode, coded, values.size), len(blob))


def measure(update: Update, coders: dict[str, ValueCoder], repeat: int) -> dict[str, dict[str, Any]]:
    """Bytes and speed of every codec."""
    total, values = size(update.update), gathered(update.update, update.shared)
    dense, copy, kept_copy = np.ones(total, np.float32), np.ones(total, np.float32), np.ones_like(values)
    found = {name: _arm(name, coder, update, values) for name, coder in coders.items()}
    works: dict[str, Work] = {"dense": partial(np.copyto, copy, dense), "kept": partial(np.copyto, kept_copy, values)}
    for name, arm in found.items():
        works |= {f"{way} {name}": getattr(arm, way) for way in (*MESSAGE, *VALUES)}
    took = turns(works, "dense", repeat)
    kept = took["kept"]["ratio"]
    return {
        name: {
            "bytes": arm.size,
            "of_bound": arm.size / bound(values.size, total),
            "of_memcpy": {way: _speed(took[f"{way} {name}"], 1.0) for way in MESSAGE},
            "values_of_memcpy": {way: _speed(took[f"{way} {name}"], kept) for way in VALUES},
        }
        for name, arm in found.items()
    }


def _speed(cost: Mapping[str, float], copy: float) -> dict[str, float]:
    """As a share of a memcpy's that takes ``copy``: the median turn, the slowest and the fastest."""
    return {"median": copy / cost["ratio"], "least": copy / cost["most"], "most": copy / cost["least"]}


def compare(options: Any) -> dict[str, Any]:
    """The result of a command line."""
    if options.kind not in KINDS:
        raise ArgumentTypeError(f"--kind is one of {', '.join(KINDS)}")
    there = importable(PACKAGES)
    torch.set_num_threads(1)
    images, source = examples(options.data, options.seed)
    training = LocalTraining(options.seed)
    update = real_update(options.model, options.kind, images, training)
    coders = {OURS: _ours(), **{name: make() for name, (package, make) in PEERS.items() if package in there}}
    arms = measure(update, coders, options.repeat)
    return {"images": source, "training": vars(training), "repeat": options.repeat, "arms": arms}


def show(result: dict[str, Any]) -> None:
    rows = []
    for name, row in result["arms"].items():
        message, values = row["of_memcpy"], row["values_of_memcpy"]
        rows.append((
            name if name == OURS else f"mask + {name}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['of_bound']:.3f}",
            *(
                f"{speed['median']:.3f} ({speed['least']:.3f} to {speed['most']:.3f})"
                for speed in (*message.values(), *values.values())
            ),
        ))  # fmt: skip
    show_table(
        "speed as a share of a memcpy's", "codec, MB, of bound, encode, decode, values packed, values unpacked", rows
    )


if __name__ == "__main__":
    data = {"type": Path, "default": DATA if DATA.exists() else None}
    options = {"--data": data, "--model": "resnet18", "--kind": "magnitude", "--repeat": 20, "--seed": 0}
    command(__doc__, compare, show, options)
