"""Strict, layered, and the same again after TOML."""

import tomllib

import pytest

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.layers import dotted, flat, parse_assignments
from fedspm.runs.config import load_config, recorded, resolve


def test_the_paper_preset_has_the_papers_settings():
    config = resolve({"preset": "paper"})
    assert (config.components, config.rounds, config.schedule) == (3, 200, 200)
    predictor, router = config.predictor, config.router
    assert (predictor.steps, predictor.momentum, router.steps, router.momentum) == (10, 0.9, 15, 0.95)
    for block in (predictor, router):
        assert (block.batch_size, block.learning_rate, block.dimension) == (128, 0.01, 32)
    assert (config.data.clients, config.data.alpha_inter, config.data.alpha_intra) == (8, 1.0, 2.0)


def test_only_the_rate_of_rows_that_may_be_vectors_is_left_open():
    assert resolve({"data": {"name": "cifar10"}}).predictor.learning_rate == 0.01  # known before they are read
    assert resolve({"data": {"name": "arrays"}}).predictor.learning_rate == "auto"
    assert resolve({"data": {"name": "arrays"}, "preset": "paper"}).predictor.learning_rate == 0.01
    assert resolve({"engine": "flower"}).predictor.learning_rate == "auto"  # the sites' own rows
    with pytest.raises(FedSPMError, match=r"predictor\.learning_rate"):
        resolve({"predictor": {"learning_rate": "fast"}})


def test_the_paper_preset_is_the_method_as_printed():
    config = resolve({"preset": "paper"})
    assert config.em.start == "random"
    assert config.em.server_step == 1
    assert not config.em.scaled_steps
    assert (config.predictor.normalisation, config.predictor.grid) == ("batch", 1)
    assert resolve({"preset": "paper"}, {"predictor": {"normalisation": "group"}}).predictor.normalisation == "group"


def test_what_was_written_down_before_a_key_existed_has_its_default_and_not_todays_preset():
    said = resolve({"preset": "paper"}).to_dict()
    assert recorded(said).predictor.grid == 1
    del said["predictor"]["grid"]
    assert recorded(said).predictor.grid == 4


def test_settings_that_shift_images_are_refused_for_own_data_however_it_is_named(tmp_path):
    for data in ({"name": str(tmp_path)}, {"name": "own", "path": str(tmp_path)}):
        with pytest.raises(FedSPMError, match=r"shift\.colour is for images that are still to be divided"):
            resolve({"data": data, "shift": {"colour": 0.9}})


def test_what_was_written_down_is_taken_even_where_it_means_nothing():
    said = {"data": {"name": "fed-isic2019", "clients": 8, "size": 64}, "rounds": 5, "horizon": 4}
    assert recorded(said).data.clients == 8


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_papers_settings_for_cifar(name):
    config = resolve({"data": {"name": name}})
    assert (config.rounds, config.predictor.dimension, config.router.dimension) == (400, 64, 64)
    assert (config.predictor.batch_size, config.data.clients, config.shift.inverted_channels) == (128, 8, "green")
    assert resolve({}).shift.inverted_channels == "all"
    assert (config.em.hold, resolve({"data": {"name": name}, "preset": "paper"}).em.hold) == (40, 0)


def test_the_papers_settings_for_fed_isic2019():
    config = resolve({"data": {"name": "fed-isic2019"}})
    assert (config.rounds, config.predictor.dimension, config.router.dimension) == (400, 256, 128)
    assert (config.predictor.batch_size, config.router.batch_size, config.data.size) == (32, 32, 64)
    assert (config.em.hold, config.em.server_step) == (20, 1)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "fed-isic2019"])
def test_a_person_wins_over_the_data_set_and_the_file_of_a_run_says_it_all(name):
    config = resolve({"preset": "paper", "data": {"name": name}}, {"rounds": 7, "router": {"dimension": 5}})
    assert (config.rounds, config.router.dimension, config.predictor.normalisation) == (7, 5, "batch")
    assert resolve(tomllib.loads(config.to_toml())) == config


def test_later_layers_win():
    file, command_line = {"rounds": 50, "router": {"steps": 5, "momentum": 0.5}}, {"router": {"steps": 7}}
    config = resolve(file, command_line)
    assert (config.rounds, config.router.steps, config.router.momentum) == (50, 7, 0.5)


def test_toml_there_and_back():
    config = resolve({"preset": "paper", "seed": 5, "horizon": 300, "data": {"clients": 3}})
    assert resolve(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"roundss": 3}, "unknown configuration key 'roundss'; did you mean 'rounds'"),
        ({"predictr": {"steps": 3}}, "'predictr'; did you mean 'predictor'"),
        ({"router": {"step": 3}}, "'router.step'; did you mean 'router.steps'"),
        ({"steps": 3}, "unknown configuration key 'steps'"),
        ({"em": 3}, "em is a table"),
        ({"rounds": "many"}, "rounds = 'many': input should be a valid integer"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
        ({"router": {"momentum": 1.5}}, "router.momentum = 1.5"),
        ({"preset": "best"}, "no preset 'best'"),
        ({"variant": "2x"}, "variant = '2x'"),
        ({"rounds": True}, "rounds = true: a truth value"),
        ({"preset": ["paper"]}, "no preset"),
        ({"workers": "abc"}, "workers = 'abc'"),
        ({"workers": 0}, "workers = 0"),
        ({"data": {"alpha_intra": float("inf")}}, "data.alpha_intra = inf"),
        ({"data": {"name": ["cifar10"]}}, "data.name"),
        ({"data": {"name": "cifar10", "size": 64}}, "data.size: the images of cifar10 are taken in their own size"),
        ({"data": {"name": " "}}, "data.name is empty"),
        ({"data": {"size": 14}}, "data.size: the images of fashion-sample are taken"),
        ({"data": {"client_column": "site"}}, "data.client_column says how your own table is read; fashion-sample is"),
        ({"data": {"name": "arrays", "clients": 5}}, "data.clients is for .*; a Federation is divided already"),
        ({"rounds": 5, "horizon": 4}, "rounds = 5: nothing is learnt after the horizon of 4"),
        ({"data": {"name": "fed-isic2019", "clients": 6}}, "data.clients is for images"),
    ],
)
def test_mistakes_get_a_sentence(values, sentence):
    with pytest.raises(FedSPMError, match=sentence) as caught:
        resolve(values)
    assert "\n" not in str(caught.value)


def test_settings_that_divide_are_refused_for_a_plugin_that_loads_a_federation(monkeypatch, vectors):
    monkeypatch.setattr("fedspm.runs.config.load_data", lambda *asked: vectors)
    assert resolve({}).federation() is vectors
    with pytest.raises(FedSPMError, match=r"data\.clients is for images .* fashion-sample comes divided"):
        resolve({"data": {"clients": 5}}).federation()
    with pytest.raises(FedSPMError, match=r"shift\.colour is for images"):
        resolve({"shift": {"colour": 0.1}}).federation()


def test_names_may_be_a_list_or_a_text_with_commas():
    for names in ("north, south", ["north", "south"]):
        assert resolve({"sites": {"names": names}}).sites.names == ("north", "south")
        assert resolve({"data": {"without": names}}).data.without == ("north", "south")


def test_assignments():
    assert parse_assignments(["router.steps=20", "data.name=fashion-mnist", "em.scaled_steps=false"]) == {
        "router": {"steps": 20},
        "data": {"name": "fashion-mnist"},
        "em": {"scaled_steps": False},
    }
    with pytest.raises(FedSPMError, match="key=value"):
        parse_assignments(["router.steps"])
    assert dotted({"a.b.c": 1, "a.d": 2}) == {"a": {"b": {"c": 1}, "d": 2}}
    assert flat({"a": {"b": {"c": 1}, "d": 2}}) == {"a.b.c": 1, "a.d": 2}


def test_a_bad_file(tmp_path):
    with pytest.raises(FedSPMError, match="no configuration file"):
        load_config(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(DamagedFile, match=r"bad\.toml is not valid TOML"):
        load_config(tmp_path / "bad.toml")


def test_a_table_that_is_not_there_is_missed_before_its_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedSPMError, match=r"there is no data set 'semmi\.csv', nor a file or folder"):
        resolve({"data": {"name": "semmi.csv", "client_column": "ward"}})


@pytest.mark.parametrize("name", ["~nobody-of-this-name", "~nobody-of-this-name/data"])
def test_the_home_of_nobody_gets_a_sentence(name):
    with pytest.raises(FedSPMError, match=r"there is no data set '~nobody|data\.path = '~nobody.* home directory"):
        resolve({"data": {"name": name}}).federation()
