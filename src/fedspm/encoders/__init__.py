"""Encoders: networks from rows to vectors, by name, by import path, or any nn.Module with a fixed output size."""

from fedspm.encoders.encoder import Encoder, build_encoder

__all__ = ["Encoder", "build_encoder"]
