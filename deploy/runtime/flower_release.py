"""The Flower that is installed: all that differs between the releases whose SuperLinks and SuperNodes are started here.

SuperNodes of Flower 1.39 speak gRPC with their SuperLink, those of 1.42 HTTP. What is installed decides which; the
files of the package tell, since importing Flower takes seconds.
"""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

#: Releases whose processes are started: their attributes are the ones that ``deploy.runtime.patches`` replaces.
STARTED = ("1.39", "1.42")
_GRPC = "flwr.client.grpc_rere_client.connection"
_HTTP = "flwr.supernode.fleet_http_connection"


def version() -> str:
    """The installed version, "1.39.0" for example."""
    return metadata.version("flwr")


def is_started() -> bool:
    """Whether it is one of the releases ``STARTED``."""
    return version().rpartition(".")[0] in STARTED


def install() -> str:
    """What to type for a release that is started.

    >>> install()
    "pip install 'flwr==1.39.*' (gRPC) or 'flwr==1.42.*' (HTTP)"
    """
    return f"pip install 'flwr=={STARTED[0]}.*' (gRPC) or 'flwr=={STARTED[1]}.*' (HTTP)"


def speaks_grpc() -> bool:
    """Whether SuperNodes connect over gRPC. Where they do not, one HTTP port serves them and every other request."""
    spec = find_spec("flwr")
    folders = spec.submodule_search_locations if spec else None
    path = _GRPC.partition(".")[2].replace(".", "/") + ".py"
    return any((Path(folder) / path).is_file() for folder in folders or [])


def connection() -> str:
    """The module in which a SuperNode keeps its connection to the SuperLink."""
    return _GRPC if speaks_grpc() else _HTTP
