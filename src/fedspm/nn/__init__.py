"""Networks and the one SGD loop: encoders by name, by import path, or any nn.Module with a fixed output size."""
