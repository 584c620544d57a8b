"""The command `python -m flfast.describe [WORD ...]`: what can be set, as a JSON Schema.

It reads what the check of a config reads: conf/, `config/schema.py` and signatures of targets.
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf._utils import get_yaml_loader
from pydantic import TypeAdapter

from flfast.config.composition import CONF
from flfast.config.errors import ConfigError
from flfast.config.schema import Settings
from flfast.config.signature import Signature, module_path, read_signature
from flfast.state.capabilities import MEANINGS, Capabilities, capabilities_of_sampler
from flfast.state.config_keys import influence, keys_with
from flfast.state.messages import did_you_mean
from flfast.state.output_streams import surviving_output
from flfast.state.plain_yaml import PARSER

VERSION = 1
"""It changes when programs that read the document have to change."""

Schema = dict[str, Any]
_INTERPOLATION = {"type": "string", "pattern": r"\$\{"}


class _Loader(PARSER):
    """Reads numbers such as 1e-3 as Hydra does."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers


def describe(*folders: Path) -> Schema:
    """JSON Schema of a run's config; `$defs` has the options of each group.

    The folders have more options, as of `--config-dir`.

    Raises:
        ConfigError: if there is no such folder.
    """
    options: dict[str, dict[str, Schema]] = {}
    for folder in (*folders, Path(CONF)):  # as Hydra, which takes flfast's of two of a name
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
        for path in sorted(folder.glob("*/**/*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            options.setdefault(group, {})[path.stem] = _option(path, group)
    config = Path(CONF, "config.yaml").read_text(encoding="utf-8")
    properties = _properties(config, _fields(Settings), "")
    chosen = [entry for entry in yaml.load(config, PARSER)["defaults"] if entry != "_self_"]
    for group, default in (choice for entry in chosen for choice in entry.items()):
        if group in Settings.model_fields:
            names = [{"$ref": f"#/$defs/{group}/{name}"} for name in options[group]]
            properties[group] = {"option": default, "anyOf": names}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "version": VERSION,
        "properties": properties,
        "patternProperties": {"^(defaults|hydra)$": {}},
        "additionalProperties": False,
        "$defs": options,
    }


def entries(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """(option, key, schema) of each key, as on the command line.

    The option is `GROUP=NAME`; it is empty for keys that are in no group.
    """
    for option, schema in {"": document, **_options(document)}.items():
        yield from ((option, *found) for found in _keys(schema, schema.get("prefix", "")))


def _options(document: Schema) -> dict[str, Schema]:
    groups = document["$defs"].items()
    return {f"{group}={name}": one for group, named in groups for name, one in named.items()}


def _keys(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, child in schema.get("properties", {}).items():
        if "option" not in child:  # it is no group
            yield f"{prefix}{name}", child
            yield from _keys(child, f"{prefix}{name}.")


def narrowed(document: Schema, word: str) -> Schema:
    """What a document says about a group, `GROUP=OPTION` or a key: schemas, by option.

    Raises:
        ConfigError: if there is no such group, option or key.
    """
    options = _options(document)
    found = {name: one for name, one in options.items() if word in {name, name.split("=")[0]}}
    keys = [*entries(document)]
    for option, key, schema in keys if not found else ():
        if key == word and "config" not in found:  # experiments only set keys of the config
            found[option or "config"] = {key: schema}
    if not found:
        hint = did_you_mean(word, [*options, *document["$defs"], *(key for _, key, _ in keys)])
        raise ConfigError(f"{word}: there is no such group, option or key{hint}")
    return found


def _option(path: Path, group: str) -> Schema:
    text = path.read_text(encoding="utf-8")
    top = [line[2:] for line in takewhile(lambda line: line[:1] == "#", text.splitlines())]
    is_global = "@package _global_" in top
    prefix = "" if is_global else f"{group.replace('/', '.')}."
    known = _fields(Settings if is_global else _fields(Settings).get(group))
    properties = _properties(text, known, prefix)
    target = properties.get("_target_", {})
    signature = _signature(target.get("default"))
    says = signature.capabilities
    if group == "sampler":
        says |= capabilities_of_sampler(signature.parameters)
    lines = [line for line in top if not line.startswith(("@package", "family:"))]
    summary = " ".join(lines) or target.get("description") or _first_line(target.get("default"))
    return {"description": summary, "prefix": prefix, **_said(says), "properties": properties}


def _first_line(target: Any) -> str:
    """First line of the docstring of a target's module."""
    path = module_path(str(target).rpartition(".")[0])
    source = path.read_text(encoding="utf-8") if path and path.suffix == ".py" else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _properties(text: str, known: Mapping[str, Any], prefix: str) -> dict[str, Schema]:
    """Schemas of the keys in a YAML file; `known` has annotations of its top level."""
    lines, loader = text.splitlines(), _Loader(text)

    def inside(mapping: Any, known: Mapping[str, Any], prefix: str) -> dict[str, Schema]:
        found = {key.value: (key, value) for key, value in mapping.value}
        target = found["_target_"][1].value if "_target_" in found else ""
        parameters = _signature(target).parameters.items()
        known = {**{name: one.annotation for name, one in parameters}, **known}
        return {
            name: property_of(key, value, known.get(name), f"{prefix}{name}")
            for name, (key, value) in found.items()
            if name not in {"defaults", "_partial_"}
        }

    def property_of(key: yaml.Node, value: yaml.Node, annotation: Any, name: str) -> Schema:
        schema: Schema = {}
        if isinstance(value, yaml.MappingNode) and value.value:
            schema["properties"] = inside(value, _fields(annotation), f"{name}.")
        else:
            schema |= _type(annotation)
            default = loader.construct_object(value, deep=True)
            schema |= {} if default == "???" else {"default": default}
        is_inline = value.end_mark.line == key.start_mark.line
        end = value.end_mark if is_inline else key.end_mark
        comment = lines[end.line][end.column :].partition("#")[2].strip()
        schema |= {"description": comment} if comment else {}
        for effect in get_args(annotation):
            schema |= _said(effect) if isinstance(effect, Capabilities) else {}
        changes = any(f"{name}.".startswith(f"{key}.") for key in keys_with("phase"))
        return {**schema, "influence": influence(name), "phase": changes}

    root = loader.get_single_node()
    return inside(root, known, prefix) if isinstance(root, yaml.MappingNode) else {}


def _said(says: Capabilities) -> Schema:
    needs = {name: MEANINGS[name] for name in sorted(says.needs)}
    return {name: said for name, said in (("needs", needs), ("breaks", says.breaks)) if said}


def _signature(target: Any) -> Signature:
    """Signature of a target; without parameters if its package is missing or does not tell."""
    try:
        found = read_signature(str(target))
    except LookupError:
        found = None
    return found or Signature({}, open_ended=True)


def _fields(annotation: Any) -> dict[str, Any]:
    """Annotations of the fields of a pydantic model, or of `Model | None`."""
    models = (getattr(one, "model_fields", None) for one in (annotation, *get_args(annotation)))
    fields: dict[str, Any] = next(filter(None, models), {})
    return {one.alias or name: one.rebuild_annotation() for name, one in fields.items()}


def _type(annotation: Any) -> Schema:
    """Types and ranges that a value may have; empty if the source does not tell."""
    try:
        found = TypeAdapter(Any if annotation is None else annotation).json_schema()
    except Exception:  # noqa: BLE001 - a type that pydantic or JSON does not have
        found = {}
    if not found or "$defs" in found:  # the keys of a mapping are described themselves
        return {}
    return {"anyOf": found.get("anyOf", [found])}


@surviving_output()
def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="flfast.describe", description="Prints a JSON Schema of the config, for editors, too."
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="a key, GROUP=OPTION or a group")
    parser.add_argument("--config-dir", "-cd", type=Path, action="append", default=[])
    given = parser.parse_args()
    try:
        document = describe(*given.config_dir)
        told = {k: v for word in given.words for k, v in narrowed(document, word).items()}
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(str(error))
    if not told:
        for _, _, schema in entries(document):
            schema.get("anyOf", []).append(_INTERPOLATION)
    text = json.dumps(told or document, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
