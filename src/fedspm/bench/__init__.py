"""Measurements, one call each, that alternate their sides within one run: a slow moment of the machine hits both.

They load on first use: a side of `bench_peers` starts in a process of its own, and its start is measured.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspm.bench.accuracy import bench_accuracy
    from fedspm.bench.peers import bench_peers
    from fedspm.bench.profile import bench_profile
    from fedspm.bench.robustness import bench_robustness
    from fedspm.bench.round import bench_round
    from fedspm.bench.route import bench_route
    from fedspm.bench.scale import bench_scale
    from fedspm.bench.serving import bench_serving
    from fedspm.bench.tables import bench_tables

__all__ = [
    "bench_accuracy",
    "bench_peers",
    "bench_profile",
    "bench_robustness",
    "bench_round",
    "bench_route",
    "bench_scale",
    "bench_serving",
    "bench_tables",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedspm.bench' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fedspm.bench.{name.removeprefix('bench_')}"), name)
