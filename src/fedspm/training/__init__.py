"""Training from its first round to its last, clients that join or leave, and predictions."""
