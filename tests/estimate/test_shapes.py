import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import shapes
from greentrain.estimate.shapes import presets


@pytest.mark.parametrize("name", presets())
def test_a_preset_adds_up_to_the_parameters_that_its_makers_state(name: str) -> None:
    preset = presets()[name]
    shape = preset.shape
    assert shape.total_parameters == pytest.approx(preset.reported, rel=0.03)
    assert bool(shape.published_total) == bool(preset.reason)
    if preset.reported_active is not None:
        left_out = preset.reported_without * shape.vocabulary * shape.d_model
        assert shape.active_parameters - left_out == pytest.approx(preset.reported_active, rel=0.03)
    assert shape.is_moe == (shape.active_parameters < shape.total_parameters)


@pytest.mark.parametrize("name", [name for name, preset in presets().items() if preset.reason])
def test_what_a_shape_does_not_add_up_to_is_small(name: str) -> None:
    shape = presets()[name].shape
    assert shape._parameters(shape.experts) == pytest.approx(shape.total_parameters, rel=0.01)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("llama3 8b", "llama-3-8b"),
        ("Llama-3.1-405B", "llama-3.1-405b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("EleutherAI/pythia-12b-deduped", "pythia-12b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("allenai/OLMo-2-1124-13B", "olmo-2-13b"),
    ],
)
def test_a_preset_is_found_however_it_is_written(spelling: str, name: str) -> None:
    assert shapes.find(spelling).name == name


def test_no_two_presets_are_written_alike() -> None:
    assert len({shapes._plain(name) for name in shapes.known()}) == len(shapes.known()) == 119


def test_an_unknown_model_is_refused_with_the_nearest_and_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'llama-3-8b'\? Give the path of a config.json.*--layers"):
        shapes.find("llama-3-9b")


def test_a_family_without_a_size_names_its_sizes() -> None:
    with pytest.raises(ConfigError, match=r"'mistral' is not .* begin so: mistral-7b, mistral-large-2, .*\. Give the"):
        shapes.find("mistral")


def test_flop_of_a_token_are_six_a_parameter_and_attention() -> None:
    shape = shapes.find("llama-2-7b")
    multiplying = shape.total_parameters - 32000 * 4096
    assert shape.flop_per_token(4096) == 6 * multiplying + 3 * 4 * 32 * 4096 * 2048
