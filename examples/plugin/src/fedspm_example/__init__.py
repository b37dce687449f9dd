"""A method, an encoder, a data set and a transform for FedSPM."""
