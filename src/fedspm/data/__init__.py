"""Federations of clients: from arrays, or built from a data set with controlled heterogeneity."""

from fedspm.data.federation import Federation
from fedspm.data.part import Part

__all__ = ["Federation", "Part"]
