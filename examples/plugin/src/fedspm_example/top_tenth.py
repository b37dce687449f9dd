"""A transform: of an update only the largest tenth of its entries leaves a client; the others are sent as zeros."""

import torch


def top_tenth(change, leaving):
    sizes = torch.cat([value.abs().flatten() for value in change.values()])
    bound = sizes.kthvalue(max(1, len(sizes) * 9 // 10)).values
    return {name: value * (value.abs() > bound) for name, value in change.items()}
