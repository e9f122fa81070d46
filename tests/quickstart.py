"""A Flower app as its quick-start tutorials write it: nothing of Prunella in it. Digits, two clients."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

LEARNING_RATE, BATCH = 0.1, 2
IMAGES = {0: slice(1500, 1501), 1: slice(1501, 1506)}  # of client 0 one, of client 1 five

app = ClientApp()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.fc = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.conv1(x)))
        return self.fc(torch.tanh(self.conv2(x)).flatten(1))


def build(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """What makes the app's model known to Prunella: ``tests.quickstart:build``."""
    return Net()


def load(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    x = torch.tensor(bunch.images[IMAGES[partition]] / 16, dtype=torch.float32).unsqueeze(1)
    return x, torch.tensor(bunch.target[IMAGES[partition]])


@app.train()
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for images, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load(int(context.node_config["partition-id"]))
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y)
    metrics = MetricRecord({"eval_loss": loss.item(), "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
