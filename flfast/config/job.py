"""What a run knows of its composition, handed down in place of Hydra's globals. Torch-free."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from flfast.config.check import check
from flfast.config.composition import compose, options_of, sources_of, without_hydra
from flfast.config.errors import ConfigError, resolved
from flfast.config.own import NOTHING, Own, is_data_module
from flfast.config.phases import Phase, compose_phases
from flfast.state.messages import first_line
from flfast.state.real_folder import real_folder

log = logging.getLogger(__name__)

_OF_HYDRA = re.compile(r"\$\{hydra:([^${}]+)\}")
_KEY, _COMMON, _ASSIGN = "model.of", "model.common", "model.assign"
_ALLOWED = (
    "allowed: options such as lenet, with overrides such as {cnn: {hidden: 64}}, or configs with "
    "a _target_"
)


def typed_overrides(composed: DictConfig) -> list[str]:
    """Overrides of a composed config, as they were typed.

    They are strings of Hydra's own node: OmegaConf would resolve `${...}` in them as in values.
    """
    texts: Any = OmegaConf.to_container(composed.hydra.overrides.task, resolve=False)
    return [*texts]


@dataclass(frozen=True)
class HydraJob:
    """The composition that a run comes from.

    Attributes:
        folder: folder of the run, as `real_folder` has it.
        overrides: overrides of the config, as typed; those of Hydra itself are not among them.
        choices: option of each group, such as `{"model": "mlp"}`.
        hydra: a config with Hydra's own node `hydra`: logging, config sources, and what
            `${hydra:...}` stands for.
        given: the run's config as it was composed, `${...}` unresolved.
        objects: objects of a Python program in place of what the config names.
    """

    folder: Path
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    hydra: DictConfig
    given: DictConfig
    objects: Own = NOTHING
    _models: dict[str, DictConfig] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, composed: DictConfig, given: DictConfig | None = None, objects: Own = NOTHING
    ) -> "HydraJob":
        """The job of a composed config whose `hydra.runtime.output_dir` is set.

        `given` is the config that Hydra passes to a job, without its own node; by default a copy
        of the composed one without that node.
        """
        given = without_hydra(deepcopy(composed)) if given is None else given
        runtime, overrides = composed.hydra.runtime, tuple(typed_overrides(composed))
        folder, choices = real_folder(runtime.output_dir), dict(runtime.choices)
        return cls(folder, overrides, choices, composed, given, objects)

    def phases(self) -> list[Phase]:
        """The phases of the run, which are checked; see `compose_phases`.

        Raises:
            ConfigError: if a setting cannot be run.
        """
        config = self.fill(self.given)
        check(config)
        return compose_phases(config, self.compose)

    def compose(self, more: Sequence[str]) -> DictConfig:
        """The job's config with more overrides; values of Hydra are filled in.

        Raises:
            HydraException: if an override names no key or no option.
        """
        name = self.hydra.hydra.job.config_name
        words = [*self.overrides, *more]
        composed = compose(words, name=name, sources=sources_of(self.hydra))
        return self.fill(without_hydra(composed), words)

    def fill(self, config: DictConfig, words: Sequence[str] | None = None) -> DictConfig:
        """A copy of the config with values for `${hydra:...}`, and with nodes of `objects`.

        Hydra's resolver would read a global, which ranks and runs from Python do not have.

        Raises:
            ConfigError: if a value cannot be filled in, such as of an environment variable.
        """
        with resolved():
            config = self._complete(config, words)
            raw = OmegaConf.to_container(config, resolve=False)
            _put(config, raw, _OF_HYDRA, self.hydra.hydra)
        return config

    def _complete(self, config: DictConfig, words: Sequence[str] | None = None) -> DictConfig:
        """A copy with nodes of `objects`, options of members, and targets where they are now.

        The batch size of a DataModule is that of the run, unless the words choose one.
        """
        config = deepcopy(config)
        self.objects.put_into(config)
        typed = self.overrides if words is None else words
        chosen = any(word.startswith(("batch_size=", "experiment=")) for word in typed)
        data = config.get("data")  # a part of a config may lack it
        if data is not None and is_data_module(data) and not chosen:
            config.batch_size = config.data.get("batch_size") or config.batch_size
        fill_members(config, self._model_option)
        self._put_in(config)
        return config

    def _put_in(self, config: DictConfig) -> None:
        """Replace groups that only a user's folder has by their values, where these are named."""
        raw: Any = OmegaConf.to_container(config, resolve=False)
        names = [name for name in self.choices if name in raw and not options_of(name)]
        if not names:
            return
        groups = OmegaConf.create({name: raw[name] for name in names})
        _put(groups, {name: raw.pop(name) for name in names}, _OF_HYDRA, self.hydra.hydra)
        with open_dict(config):
            for name in names:
                del config[name]
        _put(config, raw, re.compile(rf"\$\{{((?:{'|'.join(names)})\.[\w.]+)\}}"), groups)

    def _model_option(self, name: str) -> DictConfig:
        """The config of an option of `conf/model/`; a HydraException if there is none."""
        if name not in self._models:
            job = self.hydra.hydra.job.config_name
            found = compose([f"model={name}"], name=job, sources=sources_of(self.hydra))
            self._models[name] = without_hydra(found).model
        return deepcopy(self._models[name])

    @contextmanager
    def new_settings(self) -> Iterator[None]:
        """Write `.hydra/`, as Hydra does, which makes the folder one of this run.

        What is done inside happens while the new files are complete beside the old ones. If it
        fails, the old ones stay.

        Raises:
            OSError: if a file cannot be written.
        """
        place = self.folder / ".hydra"
        made = not place.exists()
        place.mkdir(parents=True, exist_ok=True)
        texts = {f"{name}.yaml": OmegaConf.to_yaml(node) for name, node in self._settings()}
        try:
            for name, text in texts.items():
                (place / f"{name}.part").write_text(text, encoding="utf-8")
            yield
        except BaseException:
            for name in texts:
                (place / f"{name}.part").unlink(missing_ok=True)
            if made:
                place.rmdir()
            raise
        for name in texts:
            (place / f"{name}.part").replace(place / name)

    def _settings(self) -> Iterator[tuple[str, DictConfig | ListConfig]]:
        yield "config", self._complete(self.given)
        yield "overrides", OmegaConf.create(list(self.overrides))
        yield "hydra", OmegaConf.masked_copy(self.hydra, "hydra")  # the last one: `SETTINGS`


def _put(node: Any, raw: Any, named: re.Pattern[str], values: DictConfig) -> None:
    """Put values where a node names them, whose unresolved content is `raw`; others stay."""
    for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
        if isinstance(value, (dict, list)):
            _put(node[key], value, named, values)
        elif isinstance(value, str) and named.search(value):
            node[key] = _filled(value, named, values)


def _filled(text: str, named: re.Pattern[str], values: DictConfig) -> Any:
    def value(match: re.Match[str]) -> Any:
        return deepcopy(OmegaConf.select(values, match[1].strip(), default=match[0]))

    whole = named.fullmatch(text)
    return value(whole) if whole else named.sub(lambda match: str(value(match)), text)


def fill_members(config: DictConfig, option: Callable[[str], DictConfig]) -> None:
    """Give members of `model.of`, and `model.common`, whole configs; changes a run's config.

    `option` maps the name of an option of `conf/model/` to its config.

    Raises:
        ConfigError: if a member is neither an option nor a config with a `_target_`.
    """
    common = OmegaConf.select(config, _COMMON)
    if common is not None and not (OmegaConf.is_dict(common) and "_target_" in common):
        OmegaConf.update(config, _COMMON, _member(common, option, _COMMON)[1], merge=False)
    listed = OmegaConf.select(config, _KEY)
    if not OmegaConf.is_list(listed):
        return
    members: dict[str, Any] = {}
    for given in listed:
        name, node = _member(given, option, _KEY)
        free = (f"{name}-{number}" for number in count(2))
        members[name if name not in members else next(n for n in free if n not in members)] = node
    OmegaConf.update(config, _KEY, members, merge=False, force_add=True)
    assign = OmegaConf.select(config, _ASSIGN)
    if isinstance(assign, str) and Path(assign).is_file():  # a saved config has the names
        OmegaConf.update(config, _ASSIGN, Path(assign).read_text(encoding="utf-8").split())


def _member(given: Any, option: Callable[[str], DictConfig], key: str) -> tuple[str, Any]:
    """The name and the config of a member."""
    if isinstance(given, str):
        try:
            return given, option(given)
        except HydraException:
            raise ConfigError(f"{key}: {given} is no option of model=; {_ALLOWED}") from None
    if OmegaConf.is_dict(given) and "_target_" in given:
        return str(given["_target_"]).rpartition(".")[2], given
    if OmegaConf.is_dict(given) and len(given) == 1:
        ((name, settings),) = given.items()
        if OmegaConf.is_dict(settings):
            name, node = _member(str(name), option, key)
            unknown = sorted({*settings} - {*node})
            if unknown:
                raise ConfigError(
                    f"{key}: {name} has no {unknown[0]}; allowed: {', '.join(map(str, node))}"
                )
            try:
                return str(settings.get("name", name)), OmegaConf.merge(node, settings)
            except OmegaConfBaseException as error:
                raise ConfigError(f"{key}: {name}: {first_line(error)}") from None
    raise ConfigError(f"{key}: {given}; {_ALLOWED}")
