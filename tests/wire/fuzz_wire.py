"""Coverage-guided fuzzing of the decoder with atheris: any bytes give a valid tree or ``WireError``.

    python tests/wire/fuzz_wire.py -max_total_time=60 -rss_limit_mb=4096 -timeout=5

``tests/wire/test_fuzz_wire.py`` runs it for a few seconds. Anything but ``WireError`` ends the run with a traceback and
the input; so do memory and time over libFuzzer's limits. The corpus starts from real blobs, kept in a temporary folder.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["prunella.wire", "prunella.core"]):
    from prunella.core.errors import WireError
    from prunella.wire.encode import REASONS, decode, decode_mask, encode, encode_mask

import torch

LIKE = {"conv.weight": torch.zeros(20, 1, 3, 3), "conv.bias": torch.zeros(4), "n": torch.zeros((), dtype=torch.int64)}
REFERENCE = {name: torch.arange(t.numel()).reshape(t.shape) % 3 > 0 for name, t in LIKE.items()}


def seeds() -> list[bytes]:
    tree = {name: torch.arange(t.numel()).reshape(t.shape).to(t.dtype) for name, t in LIKE.items()}
    inside = {name: m & (torch.arange(m.numel()).reshape(m.shape) % 2 > 0) for name, m in REFERENCE.items()}
    few = {name: m & (torch.arange(m.numel()).reshape(m.shape) % 50 == 1) for name, m in REFERENCE.items()}  # gaps
    coded = [
        encode(tree, few),
        encode_mask(few),
        *(encode(tree, m, r) for m in (REFERENCE, inside) for r in (None, REFERENCE)),
    ]
    return [*coded, encode(tree, inside, None, "int8"), encode(tree, inside, None, "float16"), encode_mask(inside)]


def one(data: bytes) -> None:
    for read in (lambda: decode(data, LIKE, REFERENCE)[0], lambda: decode_mask(data, LIKE, REFERENCE)):
        try:
            tree = read()
        except WireError as error:
            assert error.reason in REASONS
        else:
            assert {n: t.shape for n, t in tree.items()} == {n: t.shape for n, t in LIKE.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds()):
            Path(folder, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, folder], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
