"""The list of all settings against the models themselves."""

import pytest

from fedspm.base.layers import merged
from fedspm.runs.config import PRESETS, Config, resolve
from fedspm.runs.settings_reference import settings

ALL = {setting.key: setting for setting in settings()}


def test_every_setting_is_listed_with_its_default_and_a_meaning():
    config = Config.model_validate(merged(Config().model_dump(), PRESETS["default"]))
    for key, setting in ALL.items():
        assert setting.meaning.strip(), key
        if not key.startswith("options."):
            assert setting.default == config.value(key)
    assert len(ALL) > 60


@pytest.mark.parametrize(
    ("key", "values", "defaults"),
    [
        ("rounds", "whole number ≥ 1", "200; cifar10: 400; cifar100: 400; fed-isic2019: 400; heart-disease: 60"),
        ("router.momentum", "number ≥ 0 and < 1", "0.95"),
        ("workers", "whole number ≥ 1, or auto", "auto"),
        (
            "em.start",
            "judged or kmeans or random or true",
            "kmeans; paper: random",
        ),
        ("privacy.clip", "number > 0", "not set"),
        ("data.size", "whole number ≥ 8 and ≤ 512", "not set; fed-isic2019: 64"),
        ("em.scaled_steps", "true or false", "true; paper: false"),
        ("options.mu", "number ≥ 0", "0.01"),
    ],
)
def test_what_is_shown_of_a_setting(key, values, defaults):
    assert (ALL[key].values, ALL[key].defaults) == (values, defaults)


def test_defaults_of_a_preset_and_of_a_data_set_are_those_of_a_run():
    for key, setting in ALL.items():
        for name, value in setting.instead.items():
            layer = {"preset": name} if name == "paper" else {"data": {"name": name}}
            assert resolve(layer).value(key) == value
