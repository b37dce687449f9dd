"""Pictures of many clients stay legible."""

import numpy as np
import torch

from fedspm.data.federation import Federation
from fedspm.data.part import Part, Truth
from fedspm.report.figures import mixing_weights, queries, routing_confusion
from fedspm.report.html import _meant

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


def test_where_clients_have_label_names_of_their_own_it_is_said_whose_a_name_is():
    """A dress was called a sandal without a word that names are permuted."""
    image, class_ = torch.zeros(3, 4, 4), np.asarray(["bag", "dress", "sneaker"])
    naming = torch.tensor([[[0, 1, 2]], [[2, 0, 1]]])  # south calls a bag sneaker, a dress bag, a sneaker dress
    part = Part(image[None], torch.tensor([2]))
    truth = Truth((torch.zeros(1),) * 2, (torch.zeros(1),) * 2, torch.ones(2, 1), naming=naming)
    federation = Federation(("north", "south"), class_, (part, part), (part, part), truth)
    assert _meant(federation, truth, "south", "south", "sneaker") == "bag"
    assert _meant(federation, truth, "south", "north", "sneaker") == "sneaker"
    answer = {"client": "south", "posterior": {"north": 0.1, "south": 0.9}, "prediction": "bag"}
    answer |= {"in_words": "south's name for dress: bag", "shows": "bag"}
    _, axes = queries([image], [answer], [("south", "sneaker")]).axes
    assert axes.get_title(loc="left") == "from south, routed to south, south's name for dress: bag ✗ (is bag)"
