"""Hydra composes a config sooner: once for all command lines with the same options of groups.

Both composing and parsing would otherwise take as long as training in most tests.
"""

import copy
import pickle
from collections import defaultdict
from functools import cache
from pathlib import Path

import yaml
from hydra import version
from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from omegaconf import AnyNode, _utils, omegaconf
from omegaconf._utils import get_yaml_loader
from omegaconf.base import Metadata

from flfast.config.composition import CONF

# Hydra composes the config twice: once to see whether the config itself asks for a sweep. Only
# the YAMLs of hparams_search do.
_composed_mode = Hydra.get_mode
_CAN_SET_MODE = ("hydra=", "hydra.mode=", "hparams_search=")


def _mode(hydra, config_name, overrides):
    if any(override.lstrip("+").startswith(_CAN_SET_MODE) for override in overrides):
        return _composed_mode(hydra, config_name, overrides)
    return None


Hydra.get_mode = _mode

if yaml.__with_libyaml__:
    # OmegaConf parses YAML in Python, which takes a quarter of the time to compose a config.
    class _Loader(yaml.cyaml.CParser, get_yaml_loader()):
        def __init__(self, stream):
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    omegaconf.get_yaml_loader = _utils.get_yaml_loader = lambda: _Loader

# The rest is what Hydra makes of the files of `conf/`, which stay as they are: it depends on the
# options of groups only. Values that are set on the command line are put into a copy of it.
_make_list = config_loader_impl.create_defaults_list
_make_config = ConfigLoaderImpl._compose_config_from_defaults_list
Plugins.instance()  # defines the class of the sources of files anew
_Files = SourcesRegistry.instance().resolve("file")
_load_file = _Files.load_config
_files, _lists, _configs = {}, {}, {}


def _file(source, config_path):
    path = Path(source.path, source._normalize_file_name(config_path))
    if not _are_ours([(source.scheme(), source.path)]):
        return _load_file(source, config_path)
    if path not in _files:
        _files[path] = pickle.dumps(_load_file(source, config_path))
    return pickle.loads(_files[path])


_Files.load_config = _file


def _sources(repo):
    return tuple((source.scheme(), source.path) for source in repo.get_sources())


def _are_ours(sources):
    return all(scheme != "file" or Path(path) == Path(CONF) for scheme, path in sources)


def _list(repo, config_name, overrides_list, prepend_hydra, skip_missing):
    overrides, sources = Overrides(repo, overrides_list), _sources(repo)
    if not _are_ours(sources):
        return _make_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)
    chosen = overrides.override_choices, overrides.append_group_defaults, overrides.deletions
    key = repr((sources, config_name, prepend_hydra, skip_missing, *chosen))
    if key not in _lists:
        _lists[key] = _make_list(repo, config_name, overrides_list, prepend_hydra, skip_missing)
    found = _lists[key]
    return DefaultsList(
        defaults=found.defaults,
        config_overrides=overrides.config_overrides,
        defaults_tree=found.defaults_tree,
        overrides=found.overrides,
    )


def _config(loader, defaults, repo):
    sources = _sources(repo)
    if not _are_ours(sources):
        return _make_config(loader, defaults=defaults, repo=repo)
    key = repr((sources, defaults))
    if key not in _configs:
        config = _make_config(loader, defaults=defaults, repo=repo)
        _configs[key] = pickle.dumps(config)
    return pickle.loads(_configs[key])


config_loader_impl.create_defaults_list = _list
ConfigLoaderImpl._compose_config_from_defaults_list = _config

# Hydra copies the sources of files, of which it then replaces the list.
ConfigRepository.__deepcopy__ = lambda repository, memo: copy.copy(repository)

# It asks which version's behaviour is wanted dozens of times, and parses two versions each time.
version._get_version = cache(version._get_version)

# And it prepares the lookup of interpolations for every file of options. Few have any.
_make_map = defaults_list._create_interpolation_map


def _map(overrides, listed, self_added):
    if any("${" in str(vars(default)) for default in listed):
        return _make_map(overrides, listed, self_added)
    return None


defaults_list._create_interpolation_map = _map

# Configs are copied often. OmegaConf takes two general deep copies for each value, although it
# copies nothing of it but what it knows about it: flags, and a cache that is empty in most cases.


def _known(metadata, memo):
    found = object.__new__(type(metadata))
    found.__dict__.update(metadata.__dict__)
    found.flags = copy.copy(metadata.flags)
    cache = metadata.resolver_cache
    found.resolver_cache = copy.deepcopy(cache, memo) if cache else defaultdict(dict)
    return found


def _node(node, memo):
    found = object.__new__(AnyNode)
    found.__dict__.update(node.__dict__, _metadata=_known(node._metadata, memo), _flags_cache=None)
    return found


Metadata.__deepcopy__, AnyNode.__deepcopy__ = _known, _node
