"""Optional dependencies: which packages an extra of this project brings, and the error that names the extra to install.

>>> require("server", "no_such_package")
Traceback (most recent call last):
prunella.core.errors.ConfigError: this needs no_such_package: pip install "prunella[server]"
"""

from importlib.util import find_spec

from prunella.core.errors import ConfigError

# By the names they are imported under; pyproject.toml has those they are installed under.
EXTRAS = {
    "server": ("sklearn", "jinja2", "PIL", "pyarrow", "prometheus_client"),
    "vision": ("torchvision", "torchmetrics", "flwr_datasets", "pyarrow", "PIL"),
    "attest": ("weasyprint",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "executorch": ("executorch",),
    "simulation": ("ray",),
    "benchmarks": ("opacus", "matplotlib", "psutil"),
}


def require(extra: str, *packages: str) -> None:
    """Raise ``ConfigError`` where one of ``packages``, or any of the extra's, is not installed. Imports nothing."""
    missing = [name for name in packages or EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(f'this needs {", ".join(missing)}: pip install "prunella[{extra}]"')


def extra_of(package: str) -> str | None:
    """The first extra that brings ``package``, None for one that none does."""
    top = package.partition(".")[0]
    return next((extra for extra, names in EXTRAS.items() if top in names), None)
