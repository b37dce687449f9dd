"""eq. 8: the M-step separates into Q₁ (supervised), Q₂ (density ratios; its surrogate Q̃₂) and Q₃ (mixing weights)."""

import numpy as np
import torch

from fedspm.mixture.em import drm_loss, supervised_loss


def test_supervised_loss_is_minus_q1i_over_n(draw):
    n, components = 7, 3
    w = torch.rand(n, components, generator=draw)
    w /= w.sum(1, keepdim=True)
    log_p = -torch.rand(n, components, generator=draw)

    q1 = 0.0
    for j in range(n):
        for c in range(components):
            q1 += w[j, c].item() * log_p[j, c].item()

    assert np.isclose(supervised_loss(w, log_p).mean().item(), -q1 / n, rtol=1e-5)


def test_drm_loss_is_minus_surrogate_q2i_over_n(draw):
    n, clients, components, me = 7, 4, 3, 2
    w = torch.rand(n, components, generator=draw)
    w /= w.sum(1, keepdim=True)
    ratio = torch.randn(n, clients, components, generator=draw)
    tau = 10 * torch.rand(clients, components, generator=draw)

    q2 = 0.0
    for j in range(n):
        for c in range(components):
            q2 += w[j, c].item() * ratio[j, me, c].item()
        inner = 0.0
        for i in range(clients):
            for c in range(components):
                inner += tau[i, c].item() * np.exp(ratio[j, i, c].item())
        q2 -= np.log(inner)

    assert np.isclose(drm_loss(w, ratio, tau.log(), me).mean().item(), -q2 / n, rtol=1e-5)


def test_a_dead_component_has_no_gradient_and_makes_no_nan():
    ratio = torch.zeros(5, 2, 3, requires_grad=True)
    w = torch.tensor([0.5, 0.5, 0.0]).expand(5, 3)
    tau = torch.tensor([[2.0, 3.0, 0.0], [1.0, 0.0, 4.0]])
    drm_loss(w, ratio, tau.log(), 0).mean().backward()
    assert torch.isfinite(ratio.grad).all()
    assert (ratio.grad[:, 0, 2] == 0).all()
    assert (ratio.grad[:, 1, 1] == 0).all()
