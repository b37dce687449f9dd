"""Errors that a person can act on: one sentence that says what was wrong, where, and what to do."""


class FedSPMError(ValueError):
    """Something in the input, the configuration or a file has to change. Its text is meant for the user."""


class TrainingFailed(FedSPMError):
    """A client's step failed: says which client, which round, which step."""


class DamagedFile(FedSPMError):
    """A file of a run or of a data set is missing, short or damaged."""


class Refused(FedSPMError):
    """A site's reply that is not used, or a message that a site does not answer: says who and why."""


class TooFewSites(FedSPMError):
    """Fewer sites answered than a round needs: the round is repeated."""
