"""Pictures of many clients stay legible."""

import numpy as np
import torch

from fedspm.pictures import mixing_weights, queries, routing_confusion

MANY = [f"site-{i}" for i in range(60)]


def names_along(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_of_many_clients_every_fourth_has_its_name():
    (axes,) = mixing_weights(np.full((60, 2), 0.5), MANY, truth=None).axes
    assert names_along(axes.xaxis) == MANY[::4]
    axes = routing_confusion(np.eye(60, dtype=int).tolist(), MANY).axes[0]
    assert names_along(axes.xaxis) == names_along(axes.yaxis) == MANY[::4]
    axes = routing_confusion(np.eye(3, dtype=int).tolist(), MANY[:3]).axes[0]
    assert names_along(axes.xaxis) == names_along(axes.yaxis) == MANY[:3]


def test_the_client_that_answers_is_among_those_shown():
    posterior = dict.fromkeys(MANY, 0.001) | {"site-58": 0.9, "site-41": 0.04}
    answer = {"client": "site-58", "posterior": posterior, "prediction": "a"}
    _, axes = queries([torch.zeros(4)], [answer], [("site-58", "a")]).axes
    shown = names_along(axes.xaxis)
    assert len(shown) == 16
    assert {"site-58", "site-41"} <= set(shown)
    assert shown == sorted(shown, key=MANY.index)
