"""What the channel paper claims: Defending Against Data Reconstruction Attacks, an information theory view (CHN)."""

from benchmarks.claims.claim import Claim

PAPER = "Channel"
FEDERATION = "federations under the channels are not yet declared as a sweep"
CLAIMS = (
    Claim(
        "C1",
        PAPER,
        "Figs. 9 to 11",
        "accuracy grows with the capacity kappa and so does the leak",
        "figures; kappa 50, 100, 200, 300",
        missing=FEDERATION,
    ),
    Claim(
        "C2",
        PAPER,
        "Figs. 12 and 13",
        "more optimization rounds n mean more accuracy and less defense",
        "figures; TotalInfo 5e5, 1e6, 2e6, 3e6 at kappa 300",
        missing=FEDERATION,
    ),
    Claim(
        "C3",
        PAPER,
        "Fig. 14",
        "MSE of gradient inversion grows as kappa falls; White and Personalized defend more than Natural",
        "CIFAR-10, LeNet, kappa 50/100/200/300/none: Natural 0.7166/0.5407/0.4006/0.3337/0.1448, White "
        "0.7496/0.7083/0.5276/0.4704, Personalized 0.7134/0.7172/0.686/0.6544",
        missing="gradient inversion under the channels is not yet declared as a sweep",
    ),
    Claim(
        "C4",
        PAPER,
        "Figs. 15 and 16",
        "the Natural channel has a better trade-off than DP-SGD and DP-PSAC, whose strength is membership inference",
        "figures; noise multipliers 0.8, 0.57, 0.46, 0.2066",
        missing="needs the membership-inference and model-inversion attacks, which attacks/ does not have yet",
    ),
    Claim(
        "C5",
        PAPER,
        "Table 2",
        "a channel adds 4 to 10 % to training time, DP-SGD 57 to 485 %",
        "over SGD: LeNet +10.43 and +57.16 %, ResNet10 +4.33 and +123.85 %, AlexNet +8.52 and +173.66 %, "
        "VGG16 +5.38 and +485.00 %",
        missing="benchmarks.defenses measures it, not yet declared as a claim",
    ),
    Claim("C6", PAPER, "Fig. 6", "larger batches and DP make reconstruction harder", "a figure", missing=FEDERATION),
    Claim(
        "C7",
        PAPER,
        "Fig. 8",
        "compressing the dimensions with large eigenvalues makes reconstruction harder",
        "a figure; no numbers",
        missing="the eigenvalue sweep is not yet declared",
    ),
)
