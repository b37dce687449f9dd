"""Whose code may be run because a file names it."""

import sys

import pytest

from fedspm.base import plugins
from fedspm.base.errors import FedSPMError
from fedspm.base.layers import dotted
from fedspm.base.plugins import ENCODERS, KINDS, NamedCode, require_allowed
from fedspm.data.settings import Data
from fedspm.runs.config import resolve


def named(name, kind="encoders"):
    return [NamedCode(kind, name)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_nobody_offers_needs_no_permission(kind):
    require_allowed(named("nobody-offers-this", kind), ())


@pytest.mark.parametrize("name", ENCODERS)
def test_our_own_encoders_are_not_from_outside(name):
    blocks = {"predictor.encoder": name, "router.encoder": name}
    assert resolve(dotted(blocks)).outside_code == []


def test_whatever_a_configuration_names_from_outside_is_listed():
    given = {"predictor.encoder": "payload:make", "algorithm": "fedmedian", "wire.transforms": ["sign"]}
    given |= {"robust": "geometric"}
    config = resolve(dotted(given)).model_copy(update={"data": Data.model_construct(name="digits")})
    assert set(config.outside_code) == {
        ("encoders", "payload:make"), ("algorithms", "fedmedian"), ("transforms", "sign"), ("data", "digits"),
        ("robust", "geometric"),
    }  # fmt: skip


def test_an_encoder_from_outside_is_refused_unless_it_is_allowed_by_name():
    with pytest.raises(FedSPMError, match=r"'payload:make' .*the module payload; .*--allow payload:make"):
        require_allowed(named("payload:make"), ("payload:other", "payload"))
    assert "payload" not in sys.modules
    require_allowed(named("payload:make"), ("payload:make",))


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_installed_package_offers_has_to_be_allowed_too(monkeypatch, kind):
    def points(kind):
        return [plugins.EntryPoint("patches", "elsewhere:Net", f"fedspm.{kind}")]

    monkeypatch.setattr(plugins, "_points", points)
    with pytest.raises(FedSPMError, match=rf"{KINDS[kind]} 'patches' .*code of an unnamed package \(elsewhere:Net\)"):
        require_allowed(named("patches", kind), ())
    require_allowed(named("patches", kind), ("patches",))
