"""Tables of mixed columns: what is in them, what all clients agree on, and the vectors that a model sees."""
