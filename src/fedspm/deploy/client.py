"""The ClientApp for sites that run Flower's plain SuperNode, with `--node-config 'site="/path/to/site.toml"'`.

It works, but slowly: Flower starts it anew for every message, from the code that the server sent (decision 0008).
"""

from pathlib import Path

from flwr.app import Context

from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.server import client_app
from fedspm.engines.flower.site import Site


def _site(context: Context) -> Site:
    return Site(SiteConfig.read(Path(str(context.node_config["site"]))))


app = client_app(_site)
