import campaign
import pytest

from benchmarks.memory import LENGTH, SETTINGS, SIZES, TINY, VOCABULARY, line, peak_bytes
from flfast.models.transformer import DecoderTransformer


@pytest.mark.parametrize("size", [TINY, SIZES["26M"]])
def test_parameters_are_counted_as_the_model_has_them(size):
    model = DecoderTransformer(
        input_shape=(LENGTH,),
        num_classes=VOCABULARY,
        num_tokens=VOCABULARY,
        task="language",
        width=size.width,
        layers=size.layers,
        heads=8,
        dropout=0.0,
    )
    assert sum(p.numel() for p in model.parameters()) == size.num_params


@campaign.only_then
@pytest.mark.parametrize("setting", ["momentum", "adamw"])
@pytest.mark.parametrize("engine", ["fused", "eager"])
def test_a_large_model_takes_less_than_two_and_a_half_times_the_least(setting, engine):
    ratio = float(line("101M", setting, engine).split("|")[-2])
    assert ratio <= 2.5


@campaign.only_then
def test_every_setting_runs():
    assert all(peak_bytes(TINY, overrides) > 0 for _, overrides in SETTINGS.values())
