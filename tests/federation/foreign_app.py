"""Flower's own apps of ``examples/flower-apps``, with and without their patches, on data that needs no network."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

APPS = Path(__file__).parents[2] / "examples" / "flower-apps"
DOWNLOADERS = (
    *("from datasets", "from flwr_datasets", "from evaluate", "disable_progress_bar()"),
    *("from torchvision", "pytorch_transforms ="),
)
DIGITS = """

# Written here by the tests, in place of a download: scikit-learn's digits as pictures of CIFAR-10's size.
def pictures(split, partition_id=0, num_partitions=1):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    at = slice(0, 96) if split == "train" else slice(1000, 1064)
    x = torch.tensor(bunch.images[at] / 8 - 1, dtype=torch.float32)[partition_id::num_partitions, None]
    x = F.interpolate(x, (32, 32)).expand(-1, 3, -1, -1).contiguous()
    return list(zip(x, torch.tensor(bunch.target[at])[partition_id::num_partitions]))
"""
OFFLINE = {
    "quickstart-pytorch": (
        "pytorchexample/task.py",
        DIGITS
        + """

def load_data(partition_id, num_partitions, batch_size):
    def rows(split):
        return [{"img": x, "label": y} for x, y in pictures(split, partition_id, num_partitions)]

    return DataLoader(rows("train"), batch_size, shuffle=True), DataLoader(rows("test"), batch_size)


def load_centralized_dataset():
    return DataLoader([{"img": x, "label": y} for x, y in pictures("test")], batch_size=64)
""",
    ),
    "legacy-pytorch": (
        "task.py",
        DIGITS
        + """

def load_data():
    return DataLoader(pictures("train"), batch_size=16, shuffle=True), DataLoader(pictures("test"))
""",
    ),
    "quickstart-huggingface": (
        "huggingface_example/task.py",
        """

# Written here by the tests, in place of a download: BERT from its configuration, and sentences of random words.
def get_model(model_name):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model("bert", vocab_size=50, max_position_embeddings=16, num_labels=2, **sizes)
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config)


def load_data(partition_id, num_partitions, model_name):
    words = torch.randint(1, 50, (40, 12), generator=torch.Generator().manual_seed(partition_id))
    rows = [{"input_ids": w, "attention_mask": torch.ones_like(w), "labels": (w[0] > 25).long()} for w in words]
    return DataLoader(rows, batch_size=8, shuffle=True), DataLoader(rows, batch_size=8)
""",
    ),
}


def copy_app(name: str, folder: Path, *patches: str) -> Path:
    """The app in ``folder`` with these patches, as ``git apply`` or ``patch -p1`` puts them on."""
    shutil.copytree(APPS / name, folder)
    for patch in patches:
        path = APPS / f"{name}.{patch}.patch"
        # A ceiling, since inside a repository git would look for the files from its top.
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
        subprocess.run(["git", "apply", str(path)], cwd=folder, env=env, check=True)
    return folder


def take_offline(name: str, folder: Path, scheme: str = "") -> Path:
    """Put small data in place of what the app would download, and leave out the packages that do that: each message is
    a process that imports them. ``scheme`` takes the place of PruneFL."""
    file, text = OFFLINE[name]
    path = folder / file
    server = next(path for path in folder.rglob("server*.py"))
    less = {"num_rounds=3": "num_rounds=2", "(0.001, batch_size=32": "(0.001, batch_size=16"}
    for old, new in {**less, **({'"prunefl", rate=0.3': scheme} if scheme else {})}.items():
        server.write_text(server.read_text().replace(old, new))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(DOWNLOADERS)) + text)
    return folder


def written(name: str, patch: str) -> tuple[int, int]:
    """Lines that a user writes or changes, and those that only move to the right, of a patch."""
    text = (APPS / f"{name}.{patch}.patch").read_text()
    added, gone = (re.findall(rf"^\{sign}(?!\{sign}\{sign}).*$", text, re.MULTILINE) for sign in "+-")
    moved = Counter(line[1:].strip() for line in added) & Counter(line[1:].strip() for line in gone)
    return len(added) - moved.total(), moved.total()
