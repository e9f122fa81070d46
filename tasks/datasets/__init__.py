"""Datasets by name. Each is three functions of where it lies (``tasks.datasets.dataset``).

FEMNIST's natural ids are its writers, CelebA's its persons (label: smiling, pictures resized from 178x218). FEMNIST
has no held-out split on the hub.

The learning rates are for ``cnn`` under the other defaults (PruneFL, PriPrune, 4 clients, 10 rounds, class-balanced
20,000 examples). Accuracy in the end, by seed: digits 0.93, 0.89, 0.96 (seeds 0 to 2); MNIST 0.73, 0.70, 0.73 (0 to 2;
at 0.25 it diverges); CIFAR-10 0.19, 0.24 (1 and 2; 0.03 diverges at seed 1, 0.08 at seed 0). Those of the others are
taken from the measured one of their size, or for larger pictures less.
"""

from prunella.tasks.datasets.dataset import Dataset
from prunella.tasks.datasets.digits import DIGITS
from prunella.tasks.datasets.hub import Hub, from_hub
from prunella.tasks.datasets.imagefolder import IMAGEFOLDER
from prunella.tasks.datasets.parquet import PARQUET, Table

_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)

HUBS: dict[str, Hub] = {
    "mnist": Hub("ylecun/mnist", Table("image", "label", None, _GREY, 10)),
    "fashion-mnist": Hub("zalando-datasets/fashion_mnist", Table("image", "label", None, _GREY, 10)),
    "femnist": Hub("flwrlabs/femnist", Table("image", "character", "writer_id", _GREY, 62), has_test=False),
    "cifar10": Hub("uoft-cs/cifar10", Table("img", "label", None, _COLOUR, 10)),
    "cifar100": Hub("uoft-cs/cifar100", Table("img", "fine_label", None, _COLOUR, 100)),
    "svhn": Hub("ufldl-stanford/svhn", Table("image", "label", None, _COLOUR, 10), subset="cropped_digits"),
    "celeba": Hub("flwrlabs/celeba", Table("image", "Smiling", "celeb_id", (3, 64, 64), 2, resize=True)),
}

DATASETS: dict[str, Dataset] = {
    "digits": DIGITS,
    "mnist": from_hub(HUBS["mnist"], learning_rate=0.05),
    "fashion-mnist": from_hub(HUBS["fashion-mnist"], learning_rate=0.05),
    "femnist": from_hub(HUBS["femnist"], learning_rate=0.05),
    "cifar10": from_hub(HUBS["cifar10"], learning_rate=0.02),
    "cifar100": from_hub(HUBS["cifar100"], learning_rate=0.02),
    "svhn": from_hub(HUBS["svhn"], learning_rate=0.02),
    "celeba": from_hub(HUBS["celeba"], learning_rate=0.005),
    "imagefolder": IMAGEFOLDER,
    "parquet": PARQUET,
}
