"""A method, an encoder and a data set for FedSPM."""
