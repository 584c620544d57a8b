"""Reads examples of a Python program: tensors, arrays, Datasets, DataFrames."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from flfast.api.own_dataset import check_plain, is_dataset, read_dataset
from flfast.api.own_frame import Coded, coded_text, is_frame, refuse_missing_rows
from flfast.api.own_targets import num_outputs, read_targets
from flfast.config.errors import ConfigError
from flfast.datamodules.examples import Examples
from flfast.datamodules.mapped import shared_tensor
from flfast.datamodules.missing import missing_owners, missing_rows
from flfast.datamodules.transforms import BatchTransform
from flfast.tasks.names import TaskName

_ALLOWED = (
    "allowed: (inputs, targets) or (inputs, targets, clients) of tensors or arrays, a map-style "
    "Dataset of such pairs or triples, a pandas DataFrame with target=COLUMN, an Examples of "
    "flfast, or a function that returns one"
)


class _Part(NamedTuple):
    """Examples for training, or for testing.

    Attributes:
        inputs: tensor [N, ...], or a `Dataset` of N input tensors.
        targets: of the task; see `Examples`.
        clients: name of each example's client, [N]; None if there are none.
    """

    inputs: Tensor | Dataset[Tensor]
    targets: Tensor
    clients: np.ndarray | None


def read_data(
    data: Any,
    test_data: Any,
    *,
    target: str | None,
    client: str | None,
    task: TaskName = "classification",
) -> Examples | Callable[..., Examples] | None:
    """The examples of `data`, followed by those of `test_data`; None without data.

    Args:
        data: in any of the allowed forms.
        test_data: as `data`; None if there is no test set.
        target: column of a DataFrame with the targets.
        client: column of a DataFrame with the clients.
        task: what the targets are for.

    Raises:
        ConfigError: naming the argument, the problem, and what is allowed.
    """
    if data is None:
        names = {"test_data": test_data, "target": target, "client": client}
        unused = next((name for name, value in names.items() if value is not None), None)
        if unused:
            raise ConfigError(f"{unused}= needs data=; {_ALLOWED}")
        return None
    if isinstance(data, Examples) or (callable(data) and not is_dataset(data)):
        if test_data is not None:
            raise ConfigError("test_data=: an Examples names its own test set, in is_test")
        return data
    coded = Coded(data, test_data)
    if is_frame(data):
        _check_names("data", data)
        coded = coded_text(
            data,
            _with_columns_of(data, test_data, client),
            target=target,
            client=client,
            task=task,
        )
    reader = _Reader(target, client, task)
    train = reader.read("data", coded.data)
    test = None if test_data is None else reader.read("test_data", coded.test_data)
    try:
        return _examples(train, test, task, coded)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data=: {error}") from None


def _with_columns_of(data: Any, test_data: Any, client: str | None) -> Any:
    """A test set with the columns in the order of `data`; it may lack those of clients."""
    if not is_frame(test_data):
        return test_data
    names = [name for name in data.columns if name in test_data.columns or name != client]
    if set(names) != set(test_data.columns):
        odd = sorted(map(str, set(names) ^ set(test_data.columns)))
        raise ConfigError(f"test_data=: column {odd[0]} is in one DataFrame only; allowed: both")
    return test_data[names]


def _examples(train: _Part, test: _Part | None, task: TaskName, coded: Coded) -> Examples:
    shape = _shape(train)
    if test is not None and _shape(test) != shape:
        raise ConfigError(
            f"test_data=: inputs of shape {list(_shape(test))}; allowed: {list(shape)}, as data="
        )
    kinds = [part.inputs[0].dtype for part in (train, test) if part is not None]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"test_data=: inputs of type {kinds[1]}; allowed: {kinds[0]}, as data=, since uint8 "
            f"is scaled to [0, 1]"
        )
    parts = [train] if test is None else [train, test]
    targets, inputs = torch.cat([part.targets for part in parts]), [part.inputs for part in parts]
    joined = _joined(inputs)
    return Examples(
        inputs=joined,
        targets=targets,
        num_classes=num_outputs(task, joined, targets),
        input_shape=shape,
        transform=BatchTransform(),
        is_test=None if test is None else np.arange(len(targets)) >= len(train.targets),
        owner=_owner(train, test),
        client_names=() if train.clients is None else client_names(train.clients),
        task=task,
        categories=coded.categories,
        class_names=coded.classes,
    )


def _shape(part: _Part) -> tuple[int, ...]:
    if not len(part.targets):
        raise ConfigError("data=: there is no example")
    shape = tuple(part.inputs[0].shape)
    if not shape or 0 in shape:
        raise ConfigError(f"data=: an input has shape {list(shape)}; allowed: one number or more")
    return shape


def _joined(inputs: Sequence[Tensor | Dataset[Tensor]]) -> Tensor | Dataset[Tensor]:
    if len(inputs) == 1:
        return inputs[0]
    tensors = [part for part in inputs if isinstance(part, Tensor)]
    if len(tensors) == len(inputs):
        return torch.cat(tensors)
    return ConcatDataset(inputs)  # type: ignore[arg-type]


def client_names(clients: np.ndarray) -> tuple[str, ...]:
    """Names of clients in the order of their numbers; empty if they are the numbers."""
    names = np.unique(clients)
    is_numbered = names.dtype.kind in "iu" and (names == np.arange(len(names))).all()
    return () if is_numbered else tuple(map(str, names))


def _owner(train: _Part, test: _Part | None) -> np.ndarray | None:
    """Number of each example's client, in the order of their names; -1 if it has none.

    Test examples have none if none of them names one.
    """
    if train.clients is None:
        if test is not None and test.clients is not None:
            raise ConfigError("test_data= names clients, and data= does not; allowed: both do")
        return None
    refuse_missing_rows("data=: the clients", missing_owners(train.clients))
    names, owner = np.unique(np.ma.getdata(train.clients), return_inverse=True)
    owner = owner.astype(np.int64)
    if test is None:
        return owner
    if test.clients is None or missing_owners(test.clients).all():
        return np.concatenate([owner, np.full(len(test.targets), -1)])
    refuse_missing_rows("test_data=: the clients", missing_owners(test.clients))
    place = np.searchsorted(names, test.clients).clip(max=len(names) - 1)
    unknown = names[place] != test.clients
    if unknown.any():
        raise ConfigError(
            f"test_data=: client {test.clients[unknown][0]} has no examples in data="
        )
    return np.concatenate([owner, place.astype(np.int64)])


class _Reader(NamedTuple):
    """Reads data in any of the allowed forms.

    Attributes:
        target: column of a DataFrame with the targets.
        client: column of a DataFrame with the clients.
        task: what the targets are for.
    """

    target: str | None
    client: str | None
    task: TaskName

    def read(self, key: str, data: Any) -> _Part:
        """The examples of an argument.

        Args:
            key: name of the argument, for errors.
            data: in any of the allowed forms.

        Raises:
            ConfigError: if it has none of them.
        """
        if is_frame(data):
            _check_names(key, data)
            return self._frame(key, data)
        if self.target is not None or self.client is not None:
            raise ConfigError(f"target= and client= name columns of a DataFrame, {key}= is none")
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, (tuple, list)) and len(data) in {2, 3}:
            return self._arrays(key, *data)
        if is_dataset(data):
            found = read_dataset(key, data, one_integer=self.task == "classification")
            targets = read_targets(f"{key}=: targets", found.targets, self.task)
            return _Part(found.inputs, targets, found.clients)
        raise ConfigError(f"{key}= is of type {type(data).__name__}; {_ALLOWED}")

    def _arrays(self, key: str, inputs: Any, targets: Any, clients: Any = None) -> _Part:
        if isinstance(inputs, np.ma.MaskedArray):
            refuse_missing_rows(f"{key}=: inputs", missing_rows(inputs))
        if not isinstance(targets, Tensor) and (given := _array(targets)).ndim:
            refuse_missing_rows(f"{key}=: targets", missing_rows(given))
        tensor = _tensor(f"{key}=: inputs", inputs)
        found = read_targets(f"{key}=: targets", targets, self.task)
        if tensor.ndim < 2:
            raise ConfigError(f"{key}=: inputs of shape {list(tensor.shape)}; allowed: [N, ...]")
        named = None if clients is None else _array(clients)
        if named is not None and not named.ndim:
            raise ConfigError(
                f"{key}=: clients of type {type(clients).__name__}; allowed: one name an input"
            )
        for name, part in {
            "targets": found[:, 0] if self.task != "classification" else found,
            "clients": named,
        }.items():
            if part is not None and tuple(part.shape) != (len(tensor),):
                raise ConfigError(
                    f"{key}=: {name} of shape {list(part.shape)} for {len(tensor)} inputs; "
                    f"allowed: [{len(tensor)}]"
                )
        return _Part(tensor, found, named)

    def _frame(self, key: str, frame: Any) -> _Part:
        target, client = self.target, self.client
        columns = list(frame.columns)
        if key == "test_data" and client not in columns:  # a central test set
            client = None
        for name, column in {"target": target, "client": client}.items():
            if (column is None and name == "target") or (
                column is not None and column not in columns
            ):
                shown = ", ".join(map(str, columns))
                raise ConfigError(
                    f"{name}={column} with {key}= a DataFrame; allowed: one of {shown}"
                )
        inputs = frame.drop(columns=[column for column in (target, client) if column is not None])
        for name in inputs.columns:
            kind = inputs[name].dtype
            if getattr(kind, "kind", "O") not in "biuf":
                raise ConfigError(
                    f"{key}=: column {name} has values of type {kind}; allowed: numbers; drop the "
                    f"column or encode it"
                )
            refuse_missing_rows(f"{key}=: column {name}", inputs[name].isna().to_numpy())
        clients = None if client is None else frame[client].to_numpy()
        try:
            labels = frame[target].to_numpy()
            return self._arrays(key, inputs.to_numpy(dtype=np.float32), labels, clients)
        except ConfigError as error:
            raise ConfigError(str(error).replace("targets", f"column {target}")) from None


def _array(values: Any) -> np.ndarray:
    """What numpy makes of values, with the mask of a masked array; 0-d if it cannot read them."""
    try:
        found: np.ndarray = np.asanyarray(values.cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError):
        return np.zeros(())
    return found


def _tensor(where: str, values: Any) -> Tensor:
    """Numbers; a memory-mapped array is not copied, and booleans become floats."""
    check_plain(where, values)
    try:
        if isinstance(values, np.memmap):
            found = shared_tensor(values)
        else:
            found = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}; allowed: numbers") from None
    if found.is_complex():
        raise ConfigError(f"{where}: complex numbers; allowed: real numbers")
    found = found.detach().cpu().contiguous()
    return found.float() if found.dtype == torch.bool else found


def _check_names(key: str, frame: Any) -> None:
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ConfigError(f"{key}=: column {twice} is there twice; allowed: one of each name")
