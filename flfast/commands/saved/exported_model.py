"""Exports a model of a saved run with torch.export or as ONNX, and compares it with the original.

The exported program contains the preprocessing of the data: it reads examples as they are stored,
such as uint8 images, or rows of a table with the codes of categories, and returns the outputs of
the task (`docs/tasks.md`), numbers in their own unit.
Of a user's LightningModule it is the forward.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.text import Text
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

from flfast.commands.saved.exported_inputs import RawRows, StoredInputs
from flfast.config.errors import ConfigError
from flfast.config.saved_run import SavedRun
from flfast.datamodules.preprocessing import TableColumns
from flfast.engines.evaluation.module_steps import evaluation_step
from flfast.lit.user_loaders import evaluation_batches
from flfast.lit.user_module import UserModule, call_step, observed, released
from flfast.output.watch.view import screen
from flfast.setup.build_models import build_model
from flfast.setup.opened_run import OpenedRun, open_run, refused
from flfast.setup.user_code import named
from flfast.state.messages import first_line
from flfast.state.regular_file import make_folder, replacing
from flfast.state.version import __version__
from flfast.state.weights import load_weights, model_weights, read_weights, write_weights

_ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}

LARGEST_DIFFERENCE = 1e-4
"""Outputs of the exported program may differ from those of the model by so much."""

_COMPARED, _MOST_NAMED = 64, 20
_BATCH = 3  # any size of at least 2 stands for all
Program = Callable[..., Any]
Inputs = tuple[Any, ...]
"""Arguments of a forward: tensors [M, ...], nested as it reads them."""


def report(saved: SavedRun, options: Mapping[str, str]) -> Path:
    """Export a model and print its description; returns the file.

    Of the options it reads `format`, `client` and `output`.

    Raises:
        ConfigError: if the run has no such model, or the program does not agree with it.
        OSError: if the file cannot be written.
    """
    client_id = int(options["client"]) if "client" in options else None
    run = open_run(saved, personal=client_id is not None)
    name = "model"
    if client_id is not None:
        known = client_id < run.data.num_clients  # an unknown one is refused later, with a message
        name = f"personal/{run.data.client_file(client_id) if known else client_id}"
    default = saved.folder / f"{name}{_ENDINGS[options['format']]}"
    path = Path(options.get("output", default))
    # The run's folder itself is named by the user, and `personal` in it is not.
    make_folder(path.parent, named="output" in options or client_id is None)
    try:
        found = export(run, options["format"], path, client_id)
    finally:
        refused(run.engine.close)
    console = screen(plain_width=100)
    for key, value in found.items():
        console.print(Text(f"{key}: {value}"), soft_wrap=True)
    console.print(Text(str(path), style="bold"), soft_wrap=True)
    return path


@torch.no_grad()
def export(run: OpenedRun, kind: str, path: Path, client_id: int | None) -> dict[str, str]:
    """Export the server's model, or a client's own, and compare outputs on the run's examples.

    Returns:
        The metadata, and the result of the comparison.

    Raises:
        ConfigError: if the model cannot be exported, or the program has other outputs.
        OSError: if the file cannot be written.
    """
    model, transform = _model(run, client_id), run.data.examples.transform
    stored, program = _inputs(run, model), model
    if isinstance(model, UserModule):
        expected = released(model)(*stored)
    else:
        expected = model(transform(*stored, dtype=torch.float32))
        program = StoredInputs(deepcopy(model), transform.mean, transform.std).eval()
    columns, unit = run.data.examples.columns, torch.ones(())
    if columns is not None and not isinstance(model, UserModule):
        program = RawRows(program, columns, _scales_of(run, columns, client_id)).eval()
        stored, expected = (program.raw(*stored),), program.in_units(expected)
        unit = program.target_deviation
    about = _describe(run, stored, expected, client_id)
    write: Callable[..., Program] = {"torch": _write_torch, "onnx": _write_onnx}[kind]
    with replacing(path.parent) as place:
        try:
            exported = write(program, _rows(stored, slice(_BATCH)), place / path.name, about)
        except OSError:
            raise
        except Exception as error:
            raise ConfigError(
                f"format={kind}: {run.saved.config.model['_target_']} cannot be exported: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from error
        difference = _largest_difference(expected, exported, stored, unit)
        if not difference <= LARGEST_DIFFERENCE:
            raise ConfigError(
                f"format={kind}: outputs of the exported program differ by {difference:.2g} from "
                f"those of the model; allowed: {LARGEST_DIFFERENCE:g}. The file is not written"
            )
    return about | {
        "largest difference of an output": f"{difference:.1e} on {_size(stored)} examples"
    }


def _scales_of(run: OpenedRun, columns: TableColumns, client_id: int | None) -> str | None:
    """The client whose own scales the program has; None: those that all share.

    Raises:
        ConfigError: if every client has its own, and none is chosen.
    """
    if not columns.clients:
        return None
    if client_id is None:
        raise ConfigError(
            "data.standardise=client: a row means something else for each client; allowed: "
            "client=NUMBER, whose own model and scales are exported"
        )
    names = run.data.client_names
    return names[client_id] if names else str(client_id)


def _model(run: OpenedRun, client_id: int | None) -> nn.Module:
    algorithm = run.learner.module.algorithm
    if client_id is not None and client_id not in run.data.candidates:
        allowed = ", ".join(map(str, run.data.candidates[:_MOST_NAMED]))
        more = ", ..." if len(run.data.candidates) > _MOST_NAMED else ""
        raise ConfigError(f"client={client_id} does not train; allowed: {allowed}{more}")
    if client_id is not None and algorithm.predict is not None:
        raise ConfigError(
            f"client={client_id}: clients of algorithm={algorithm.name} do not predict with the "
            f"model alone, so it cannot be exported"
        )
    model = refused(lambda: build_model(run.saved.config, run.data, run.saved.objects, client_id))
    own, weights = run.learner, model_weights(run.server)
    if client_id is not None:
        own = own.of_client(client_id)
        weights = run.engine.personal_weights(run.server, client_id)
    if own.adapted is not None:
        weights = load_weights(
            read_weights(model), own.adapted.complete(weights), source=run.origin
        )
    write_weights(model, weights)
    return model.eval().requires_grad_(requires_grad=False)


def _inputs(run: OpenedRun, model: nn.Module) -> Inputs:
    """Stored inputs of test or training examples; of a user's module what its forward reads."""
    indices = run.data.central_test
    if len(indices) < _BATCH:
        indices = run.data.splits["train"].indices
    if isinstance(model, UserModule):
        found = _inputs_of_forward(run, model, indices[:_COMPARED])
    else:
        batches = run.data.eval_loader(indices[:_COMPARED])
        found = (torch.cat([batch.inputs for batch in batches]),)
    return _rows(found, torch.arange(num := _size(found)).repeat(-(-_BATCH // num)))


def _inputs_of_forward(run: OpenedRun, model: UserModule, indices: np.ndarray) -> Inputs:
    """What the module says that its forward reads, or what its evaluation gives it."""
    given, seen = model.example_input_array, list[Inputs]()
    if given is not None:
        return given if isinstance(given, tuple) else (given,)
    batch = next(evaluation_batches(run.data, indices, model)).inputs
    step = evaluation_step(model, validation=False) or "training_step"
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    where = type(model).__name__
    with named("model", where), observed(model, {}, silent=True, recorded=False):
        call_step(model, step, batch, 0)
    hook.remove()
    if len(seen) != 1:
        raise ConfigError(
            f"model={where}: its steps call forward {len(seen)} times; allowed: a module with "
            f"self.example_input_array, the arguments of its forward"
        )
    return seen[0]


def _size(inputs: Inputs) -> int:
    return len(tree_leaves(inputs)[0])


def _rows(tree: Any, index: Any) -> Any:
    """Some examples of inputs."""
    return tree_map(lambda leaf: leaf[index], tree)


def _describe(
    run: OpenedRun, inputs: Inputs, outputs: Any, client_id: int | None
) -> dict[str, str]:
    transform, config = run.data.examples.transform, run.saved.config
    mean, std = (getattr(transform, name, None) for name in ("mean", "std"))
    own = isinstance(run.learner.module.model, UserModule)
    kind = tree_leaves(inputs)[0].dtype
    steps = ["divided by 255"] if kind == torch.uint8 and not own else []
    if mean is not None and std is not None:
        steps.append(f"minus {list(mean)}, divided by {list(std)}")
    columns = None if own else run.data.examples.columns
    if columns is not None and any(columns.numeric.values()):
        steps.append("columns are standardised")
    kept = {} if columns is None else {"columns": columns.model_dump_json()}
    classes = run.data.examples.class_names
    kept |= {"classes": json.dumps(classes)} if classes else {}
    return {
        "flfast": __version__,
        "algorithm": run.learner.module.algorithm.name,
        "model": str(config.model["_target_"]),
        "weights": "server" if client_id is None else f"client {client_id}",
        "origin": run.origin,
        "input": _what(columns, is_module=own),
        "input_shape": _shapes(inputs),
        "input_dtype": str(kind).removeprefix("torch."),
        "normalisation": "; ".join(steps) or "none",
        "normalisation_is": "part of the program",
        "output": _shapes(outputs),
        **kept,
    }


def _what(columns: TableColumns | None, *, is_module: bool) -> str:
    if columns is not None:
        return f"rows of {', '.join(columns.names)}; categories by number, from 0, as in columns"
    return "what forward reads" if is_module else "stored examples, not normalised"


def _shapes(tree: Any) -> str:
    shapes = [["batch", *leaf.shape[1:]] for leaf in tree_leaves(tree)]
    return json.dumps(shapes if len(shapes) > 1 else shapes[0])


def _write_torch(
    program: nn.Module, inputs: Inputs, path: Path, about: Mapping[str, str]
) -> Program:
    sizes = tree_map(lambda leaf: {0: Dim("batch", min=1)}, inputs)
    found = torch.export.export(program, inputs, dynamic_shapes=sizes)
    torch.export.save(found, path, extra_files={"flfast.json": json.dumps(dict(about))})
    loaded: Program = torch.export.load(path).module()
    return loaded


def _write_onnx(
    program: nn.Module, inputs: Inputs, path: Path, about: Mapping[str, str]
) -> Program:
    import onnxruntime  # an extra; `flfast/export.py` has checked that it is there

    found: Any = torch.onnx.export(
        program,
        inputs,
        input_names=["inputs"],
        output_names=["outputs"],
        dynamic_shapes=tree_map(lambda leaf: {0: Dim("batch", min=1)}, inputs),
        dynamo=True,
        verbose=False,
    )
    found.model.metadata_props.update(about)
    found.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*batch: Any) -> list[Tensor]:
        pairs = zip(session.get_inputs(), tree_leaves(batch), strict=True)
        outputs = session.run(None, {one.name: leaf.numpy() for one, leaf in pairs})
        return [*map(torch.from_numpy, outputs)]

    return run


@torch.no_grad()
def _largest_difference(expected: Any, exported: Program, stored: Inputs, unit: Tensor) -> float:
    """Largest difference of an output from the model's in `unit`, with two sizes of batches."""
    parts = (tree_leaves(exported(*_rows(stored, part))) for part in (slice(1), slice(1, None)))
    pairs = zip(map(torch.cat, zip(*parts, strict=True)), tree_leaves(expected), strict=True)
    return max(float(((found - own) / unit).abs().max()) for found, own in pairs)
