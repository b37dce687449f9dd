"""The contract between algorithms and engines: steps, replies, what may leave a client, evaluation."""
