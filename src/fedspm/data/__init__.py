"""Federations of clients: from arrays, or built from a data set with controlled heterogeneity."""

from fedspm.data.federation import Federation, Part

__all__ = ["Federation", "Part"]
