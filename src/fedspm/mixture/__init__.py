"""The semiparametric mixture: its model, its EM steps, routing and prediction, and how EM starts."""
