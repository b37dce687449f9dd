"""Across machines: what the server's operator and the sites start, on Flower's SuperLink and SuperNodes."""
