"""The checker of array shapes and types that runs under every test; an int is a float to it, as to Python."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
