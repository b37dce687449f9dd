"""The whole system behind scikit-learn's interface, and ways to divide rows of many sites for validation."""

from fedspm.estimator.classifier import FederatedClassifier
from fedspm.estimator.splitters import SiteKFold, leave_one_site_out

__all__ = ["FederatedClassifier", "SiteKFold", "leave_one_site_out"]
