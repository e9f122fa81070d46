"""A small Flower app in the shape that ``flwr new`` gives a PyTorch one, on digits, and lines that change it."""

from pathlib import Path

PROJECT = """\
[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"
[project]
name = "pytorchexample"
version = "1.0.0"
description = "A Flower / PyTorch app"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "pytorchexample.server_app:app"
clientapp = "pytorchexample.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 2
local-epochs = 1
learning-rate = 0.1
result = "RESULT"
"""

TASK = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 4 * 4, 40)
        self.fc2 = nn.Linear(40, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def load_data(partition_id, num_partitions):
    bunch = load_digits()
    x = torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1)[partition_id::num_partitions]
    y = torch.tensor(bunch.target)[partition_id::num_partitions]
    return DataLoader(TensorDataset(x[:128], y[:128]), batch_size=32, shuffle=True)


def train(net, trainloader, epochs, lr):
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))
"""

CLIENT = """\
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    epochs, lr = context.run_config["local-epochs"], msg.content["config"]["lr"]
    train_loss = train_fn(model, trainloader, epochs, lr)
    model_record = ArrayRecord(model.state_dict())
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
"""

SERVER = """\
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorchexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), context.run_config["result"])
"""

UPDATE = [
    ("pyproject.toml", "learning-rate = 0.1\n", 'learning-rate = 0.1\ndefenses = "DEFENSES"\n'),
    ("pytorchexample/client_app.py", "import ClientApp\n", "import ClientApp\nfrom prunella import Defend\n"),
    ("pytorchexample/client_app.py", "ClientApp()", "ClientApp(mods=[Defend()])"),
    ("pytorchexample/server_app.py", "import FedAvg\n", "import FedAvg\nfrom prunella import Prune\n"),
    (
        "pytorchexample/server_app.py",
        "FedAvg(fraction_train=1.0, fraction_evaluate=0.0)",
        'Prune(FedAvg(fraction_train=1.0, fraction_evaluate=0.0), "magnitude", rate=0.5, ramp_rounds=2)',
    ),
]
LOOP = [
    (
        "pytorchexample/client_app.py",
        "    train_loss = train_fn(model, trainloader, epochs, lr)\n",
        "    with protected(msg, context, model, trainloader) as guard:\n"
        "        train_loss = train_fn(model, trainloader, epochs, lr, guard)\n",
    ),
    ("pytorchexample/client_app.py", "from prunella import Defend\n", "from prunella import Defend, protected\n"),
    (
        "pytorchexample/task.py",
        "def train(net, trainloader, epochs, lr):",
        "def train(net, trainloader, epochs, lr, guard):",
    ),
    (
        "pytorchexample/task.py",
        "            optimizer.zero_grad()\n            loss = criterion(net(images), labels)\n"
        "            loss.backward()\n            optimizer.step()\n            running_loss += loss.item()\n",
        "            running_loss += float(guard.step(images, labels, criterion, optimizer) or 0)\n",
    ),
]


def write(folder: Path, changes: list[tuple[str, str, str]], result: Path, defenses: str) -> dict[str, str]:
    """The app's files with these changes: their text by name."""
    files = {
        "pyproject.toml": PROJECT,
        "pytorchexample/__init__.py": "",
        "pytorchexample/task.py": TASK,
        "pytorchexample/client_app.py": CLIENT,
        "pytorchexample/server_app.py": SERVER,
    }
    for name, old, new in changes:
        assert files[name].count(old) == 1, (name, old)
        files[name] = files[name].replace(old, new)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("RESULT", str(result)).replace("DEFENSES", defenses))
    return files
