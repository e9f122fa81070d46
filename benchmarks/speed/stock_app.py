"""An app of Flower's own ``FedAvg``, as its tutorials write one, under Flower's own commands: the peer of ``scale``.

The same network and the same images as the app of ``prunella run`` at ``dataset`` and ``model``, shared out evenly; a
client takes as many steps of SGD on as many images, and the server tests every round's model. Training, averaging and
messages are PyTorch's and Flower's alone. Its ServerApp writes the lines that a launcher follows.
"""

from pathlib import Path

from prunella.benchmarks.speed.round import write_files

PYPROJECT = """\
[project]
name = "stock-fedavg"
version = "0.1.0"
[tool.flwr.app]
publisher = "prunella"
[tool.flwr.app.components]
serverapp = "stock_server:app"
clientapp = "stock_client:app"
[tool.flwr.app.config]
rounds = 4
fraction = 1.0
expected-clients = 0
dataset = "digits"
model = "cnn"
local-steps = 8
batch-size = 16
learning-rate = 0.25
run-dir = ""
metrics-address = ""
"""

SERVER = """\
import json, os, time
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from prunella.tasks.data import load_test, make_task
app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    model = make_task(config["model"], config["dataset"], None).build().eval()
    test, begin = load_test(config["dataset"], None), [time.time()]

    def note(round, metric, value):
        line = {"round": round, "time": time.time(), "metric": metric, "labels": {}, "value": value}
        with open(os.path.join(config["run-dir"], "metrics.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\\n")

    @torch.no_grad()
    def evaluate(round, arrays):
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy = float((model(test.x).argmax(1) == test.y).float().mean())
        if round:
            note(round, "accuracy_ratio", accuracy)
            note(round, "round_seconds", time.time() - begin[0])
        begin[0] = time.time()
        return MetricRecord({"accuracy": accuracy})

    everybody = config["expected-clients"]
    chosen = max(1, int(everybody * config["fraction"]))
    strategy = FedAvg(fraction_train=config["fraction"], fraction_evaluate=0.0, min_train_nodes=chosen,
                      min_available_nodes=everybody)
    train = ConfigRecord({"lr": config["learning-rate"]})
    strategy.start(grid, ArrayRecord(model.state_dict()), config["rounds"], train_config=train, evaluate_fn=evaluate)
"""

CLIENT = """\
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from prunella.tasks.data import Partition, load_client, make_task
app = ClientApp()


@app.train()
def train(message, context):
    run, node = context.run_config, context.node_config
    torch.set_num_threads(1)
    part = Partition("iid", int(node["num-partitions"]))
    examples = load_client(run["dataset"], part, int(node["partition-id"]), None)
    model = make_task(run["model"], run["dataset"], None).build().train()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(model.parameters(), message.content["config"]["lr"])
    for _ in range(run["local-steps"]):
        chosen = torch.randperm(len(examples))[: run["batch-size"]]
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(model(examples.x[chosen]), examples.y[chosen]).backward()
        sgd.step()
    told = MetricRecord({"num-examples": len(examples)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told}), reply_to=message)
"""


def write_stock_app(directory: Path) -> Path:
    """The app, as files in ``directory``."""
    return write_files(directory, {"pyproject.toml": PYPROJECT, "stock_server.py": SERVER, "stock_client.py": CLIENT})
