"""Flower: `exchange` as messages between a server and sites."""
