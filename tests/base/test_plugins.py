"""Whose code may be run because a file names it."""

import sys

import pytest

from fedspm.base import plugins
from fedspm.base.errors import FedSPMError
from fedspm.base.plugins import ENCODERS, require_allowed


@pytest.mark.parametrize("name", [*ENCODERS, "nobody-offers-this"])
def test_a_name_that_runs_nothing_from_outside_needs_no_permission(name):
    require_allowed(name, ())


def test_an_encoder_from_outside_is_refused_unless_it_is_allowed_by_name():
    with pytest.raises(FedSPMError, match=r"'payload:make' .*the module payload; .*--allow-encoder payload:make"):
        require_allowed("payload:make", ("payload:other", "payload"))
    assert "payload" not in sys.modules
    require_allowed("payload:make", ("payload:make",))


def test_an_installed_packages_encoder_has_to_be_allowed_too_and_cannot_take_our_names(monkeypatch):
    def points(kind):
        return [plugins.EntryPoint(name, "elsewhere:Net", f"fedspm.{kind}") for name in ("patches", "mlp")]

    monkeypatch.setattr(plugins, "_points", points)
    with pytest.raises(FedSPMError, match=r"would run code of an unnamed package \(elsewhere:Net\)"):
        require_allowed("patches", ())
    require_allowed("patches", ("patches",))
    require_allowed("mlp", ())
