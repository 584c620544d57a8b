"""`flfast.export`: exported programs give the outputs of the model, in any batch size."""

import json

import pytest
import torch
from exported import LOAD, load_torch
from nets_to_export import conv_net
from sampling import others_slow
from torch import nn

from flfast import run as flfast_run
from flfast.commands.saved.exported_inputs import StoredInputs
from flfast.config.errors import ConfigError
from flfast.datamodules.transforms import BatchTransform
from flfast.export import export
from flfast.models.mlp import mlp


def stored_digits():
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().images * (255 / 16)).round().to(torch.uint8)[:, None]


KINDS = [("torch", "ditto"), ("onnx", "fedavg")]


@pytest.mark.parametrize(("kind", "name"), others_slow(KINDS, KINDS[:1]))
def test_an_exported_program_reads_stored_examples(run_of, tmp_path, capsys, kind, name):
    """A client's own MLP, and a convolution with BatchNorm and dropout of the server."""
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    run, path = run_of(name), tmp_path / "model.bin"
    if name == "fedavg":
        words, model, weights = [], conv_net((1, 8, 8), 10), run / "model.pt"
    else:
        model = mlp(input_shape=(1, 8, 8), num_classes=10, hidden=[16], dropout=0.0)
        weights = sorted((run / "personal").iterdir())[0]
        words = [f"client={weights.stem}"]
    export([f"run={run}", f"format={kind}", f"output={path}", "allow=nets_to_export", *words])
    program, about = LOAD[kind](path)
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval()
    stored = stored_digits()
    for num in (1, 2, 17):
        inputs = stored[:num]
        with torch.no_grad():
            expected = model((inputs / 255 - 0.2873) / 0.3539)
        torch.testing.assert_close(program(inputs), expected, rtol=0, atol=1e-4)
    assert about["algorithm"] == name
    assert about["input_shape"] == '["batch", 1, 8, 8]'
    assert about["input_dtype"] == "uint8"
    assert about["output"] == '["batch", 10]'
    assert about["normalisation"] == "divided by 255; minus [0.2873], divided by [0.3539]"
    printed = capsys.readouterr().out
    assert "largest difference of an output: " in printed
    assert f"weights: {words[0].replace('=', ' ') if words else 'server'}" in printed


@pytest.mark.slow
def test_a_language_model_has_outputs_for_every_token(tmp_path):
    speakers = "\n".join(f"{name}:\nTo be or not to be, that is.\n" for name in "AB")
    (tmp_path / "tinyshakespeare.txt").write_text(speakers, encoding="utf-8")
    run = flfast_run(
        *("data=shakespeare", f"data.root={tmp_path}", "data.tokenizer=words", "rounds=1"),
        *(
            "data.min_characters=1",
            "data.sequence_length=4",
            "model=transformer",
            "model.layers=1",
        ),
        *("split.val=0", "optimized_metric=train/loss"),
        *("engine=eager", "callbacks=quiet", "trainer.devices=1"),
        folder=tmp_path / "run",
    )
    path = tmp_path / "model.pt2"
    export([f"run={run.folder}", "format=torch", f"output={path}"])
    program, about = load_torch(path)
    words = len({"to", "be", "or", "not", ",", "that"})  # "is ." is the test set
    assert json.loads(about["output"]) == ["batch", 4, words + 2]
    assert program(torch.zeros(3, 4, dtype=torch.int64)).shape == (3, 4, words + 2)


TRANSFORMS = {
    "grey": (BatchTransform((0.3,), (0.2,)), torch.randint(0, 256, (5, 1, 4, 4)).byte()),
    "colour": (
        BatchTransform((0.3, 0.4, 0.5), (0.2, 0.3, 0.4), random_flip=True),
        torch.randint(0, 256, (5, 3, 4, 4)).byte(),
    ),
    "one mean": (BatchTransform((0.3,), (0.2, 0.3)), torch.rand(5, 2, 4, 4)),
    "not normalised": (BatchTransform(), torch.randint(0, 256, (5, 1, 4, 4)).byte()),
    "features": (BatchTransform(), torch.randn(5, 7, dtype=torch.float64)),
    "tokens": (BatchTransform(), torch.randint(0, 9, (5, 6))),
}


@pytest.mark.parametrize("case", TRANSFORMS)
def test_stored_inputs_are_normalised_as_in_evaluation(case):
    transform, inputs = TRANSFORMS[case]
    expected = transform(inputs, dtype=torch.float32)
    found = StoredInputs(nn.Identity(), transform.mean, transform.std)(inputs)
    torch.testing.assert_close(found, expected)


def test_a_program_with_other_outputs_is_refused_and_not_written(run_of, tmp_path):
    path = tmp_path / "model.pt2"
    words = [f"run={run_of('fedavg')}", "format=torch", f"output={path}", "allow=nets_to_export"]
    words.append("model._target_=nets_to_export.Noisy")
    with pytest.raises(ConfigError, match=r"outputs of the exported program differ by 0\.\d+"):
        export(words)
    assert not [*tmp_path.iterdir()]


def test_a_model_that_cannot_be_traced_is_refused_by_name(run_of, tmp_path):
    model = "model._target_=nets_to_export.Branching"
    words = [f"run={run_of('fedavg')}", "format=torch", f"output={tmp_path / 'model.pt2'}", model]
    words.append("allow=nets_to_export")
    with pytest.raises(ConfigError, match=r"nets_to_export\.Branching cannot be exported: "):
        export(words)


REFUSED = {
    ("fedavg",): "format is missing; allowed: torch, onnx",
    ("fedavg", "format=tflite"): "format=tflite: allowed: torch, onnx",
    ("fedavg", "format=torch", "client=one"): "client=one: allowed: the number of a client",
    ("fedavg", "format=torch", "output=."): "output=. is a folder; allowed: a file, or a new path",
    ("fedavg", "format=torch", "client=1"): "clients of algorithm=fedavg have no models",
    ("ditto", "format=torch", "client=9"): "client=9 does not train",
    ("fedrep", "format=torch"): "the server of algorithm=fedrep has no complete model",
    ("fedcp", "format=torch", "client=1"): "do not predict with the model alone",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_exported_is_refused(run_of, words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        export([f"run={run_of(words[0])}", "allow=nets_to_export", *words[1:]])
