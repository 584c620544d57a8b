"""Pages about every option of conf/, from its comments and the docstrings of its targets.

The site is built with these pages (docs/site.py). They are not kept in the repository.
`python -m docs.reference` prints them.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from flfast.config.signature import module_path

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
_HIDDEN = {"_target_", "_partial_", "defaults"}
"""Keys of an option that are no settings."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):$")


class Key(NamedTuple):
    """A key of a YAML file.

    Attributes:
        name: with the keys that it is in, such as `checkpoint.every`.
        default: as the file has it.
        comment: behind it: what it is, and its range.
    """

    name: str
    default: str
    comment: str


def pages() -> dict[str, str]:
    """Markdown by the page's place on the site: the keys of a run, and each group of options."""
    groups = sorted(path for path in CONF.iterdir() if path.is_dir())
    group_pages = {f"reference/{group.name}.md": group_page(group) for group in groups}
    return {"reference/config.md": top_page(CONF / "config.yaml"), **group_pages}


def top_page(path: Path) -> str:
    """The page about keys that are in no group."""
    intro = "Keys of a run that are in no group: `python -m flfast.train KEY=VALUE`."
    return f"# Keys of a run\n\n{intro}\n\n{table(keys(path), prefix='')}\n"


def group_page(group: Path) -> str:
    """The page about the options of a group."""
    files = sorted(group.rglob("*.yaml"))
    chosen = "hydra/launcher" if group.name == "hydra" else group.name
    intro = f"`python -m flfast.train {chosen}=OPTION` chooses one of these options."
    default = _defaults().get(group.name)
    intro += f" The default is `{default}`." if default and chosen == group.name else ""
    sections = [option_section(path, group) for path in files]
    return "\n\n".join([f"# {group.name}", intro, *sections]) + "\n"


def option_section(path: Path, group: Path) -> str:
    """The section about one option."""
    name = path.relative_to(group).with_suffix("").as_posix()
    text = path.read_text(encoding="utf-8")
    parts = [f"## {name}", summary(text)]
    prefix = f"{path.parent.relative_to(CONF).as_posix().replace('/', '.')}."
    is_global = "# @package _global_" in text
    parts.append(table(keys(path), prefix="" if is_global else prefix))
    target = next((key.default for key in keys(path, hidden=True) if key.name == "_target_"), "")
    if target and target != "???":
        parts += [f"Calls `{target}`.", *docstrings(target)]
    return "\n\n".join(filter(None, parts))


def summary(text: str) -> str:
    """What a file says about its option: the comment at its top, or behind `_target_`."""
    top = re.match(r"(?:#.*\n)*", text)
    lines = [line.lstrip("# ") for line in (top[0] if top else "").splitlines()]
    lines = [line for line in lines if not line.startswith(("@package", "family:"))]
    target = re.search(r"^_target_: [^#\n]+#\s*(.+)$", text, re.MULTILINE)
    said = _cell(" ".join(lines) or (target[1] if target else ""))
    return re.sub(r"^[a-z]+(?=[ ,])", lambda word: word[0].capitalize(), said)


def table(found: list[Key], *, prefix: str) -> str:
    """Keys with their defaults and comments."""
    if not found:
        return "It has no settings."
    rows = [
        f"| `{prefix}{key.name}` | {_code(key.default)} | {_cell(key.comment)} |" for key in found
    ]
    return "\n".join(["| key | default | meaning, and what is allowed |", "|---|---|---|", *rows])


def keys(path: Path, *, hidden: bool = False) -> list[Key]:
    """Settings of a file; with `hidden`, also those that are no settings."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text)
    found = _keys(root, text.splitlines(), "") if isinstance(root, yaml.MappingNode) else []
    return [key for key in found if hidden or key.name.partition(".")[0] not in _HIDDEN]


def _keys(mapping: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Key]:
    for key, value in mapping.value:
        name = f"{prefix}{key.value}"
        inline = value.end_mark.line == key.start_mark.line
        end = value.end_mark if inline else key.end_mark
        _, _, comment = lines[end.line][end.column :].partition("#")
        if key.value == "_partial_":
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if comment:
                yield Key(name, "", comment.strip())
            yield from _keys(value, lines, f"{name}.")
        else:
            yield Key(name, _source(value, lines), comment.strip())


def _source(value: yaml.Node, lines: list[str]) -> str:
    """A value as the file writes it, on one line."""
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column] or '""'
    if isinstance(value, yaml.ScalarNode):
        return f"{value.value.splitlines()[0]} …"
    items = yaml.safe_load("\n".join(lines[start.line : end.line]))
    return yaml.safe_dump(items, default_flow_style=True, width=1000).strip()


def docstrings(target: str) -> list[str]:
    """Docstrings of a function of flfast, and of the module that it is in, as Markdown."""
    module, _, name = target.rpartition(".")
    path = module_path(module) if module.split(".")[0] in {"flfast", "hydra_plugins"} else None
    if path is None:
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [node for node in tree.body if getattr(node, "name", "") == name]
    nodes = [tree, *(node for node in named if isinstance(node, ast.FunctionDef | ast.ClassDef))]
    return [markdown(text) for node in nodes if (text := ast.get_docstring(node))]


def markdown(docstring: str) -> str:
    """A docstring in Google's style as Markdown; the entries of a section become a list."""
    lines, in_section = [], False
    for line in inspect.cleandoc(docstring).splitlines():
        if section := _SECTION.match(line):
            in_section = True
            lines += [f"**{section[1]}**", ""]
        elif in_section and (entry := re.match(r"^ {4}(\w+): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {_escaped(entry[2])}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {_escaped(line.strip())}")
        else:
            in_section = in_section and not line
            lines.append(line if line.startswith("    ") else _escaped(line))
    return "\n".join(lines)


def _defaults() -> dict[str, str]:
    """Options that a run has if nothing is chosen, by group."""
    config = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    entries = [entry for entry in config["defaults"] if isinstance(entry, dict)]
    return {group: option for entry in entries for group, option in entry.items() if option}


def _escaped(text: str) -> str:
    """Text without the meaning that Markdown gives to some characters; code stays."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


if __name__ == "__main__":
    print("\n".join(pages().values()))  # noqa: T201 - the output of the command
