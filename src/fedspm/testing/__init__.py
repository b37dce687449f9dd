"""For those who write a method: `check_algorithm` tells whether it keeps the contract (docs/extending.md)."""

from fedspm.testing.algorithm_checks import CHECKS, check_algorithm

__all__ = ["CHECKS", "check_algorithm"]
