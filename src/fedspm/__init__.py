"""FedSPM: routing-enabled federated learning under dual heterogeneity.

The public names load on first use, so that `fedspm --help` does not wait for PyTorch.
"""

from fedspm.version import __version__

TYPE_CHECKING = False  # typing's own is not imported: `python -m fedspm` still has the working directory on its path
if TYPE_CHECKING:
    from typing import Any

    from fedspm.data.federation import Federation
    from fedspm.estimator import FederatedClassifier
    from fedspm.runs.folder import load_run
    from fedspm.serve.client import connect

__all__ = ["FederatedClassifier", "Federation", "__version__", "connect", "load_run"]

_HOME = {
    "FederatedClassifier": "fedspm.estimator",
    "Federation": "fedspm.data.federation",
    "connect": "fedspm.serve.client",
    "load_run": "fedspm.runs.folder",
}


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'fedspm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
