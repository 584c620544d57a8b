"""Pages about every option of conf/, from `flfast.describe` and the docstrings of targets.

The site is built with these pages (docs/site.py). They are not kept in the repository.
`python -m docs.reference` prints them.
"""

import ast
import inspect
import re
from typing import Any

import yaml

from flfast.config.signature import module_path
from flfast.describe import describe, entries
from flfast.state.capabilities import MEANINGS

_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields):$")
Schema = dict[str, Any]


def pages() -> dict[str, str]:
    """Markdown by the page's place on the site: the keys of a run, and each group of options."""
    document = describe()
    keys: dict[str, list[tuple[str, Schema]]] = {}
    for option, key, schema in entries(document):
        keys.setdefault(option, []).append((key, schema))
    intro = "Keys of a run that are in no group: `python -m flfast.train KEY=VALUE`."
    made = {"reference/config.md": f"# Keys of a run\n\n{intro}\n\n{table(keys[''])}\n"}
    for group, options in sorted(document["$defs"].items()):
        default = document["properties"].get(group, {}).get("option")
        intro = f"`python -m flfast.train {group}=OPTION` chooses one of these options."
        intro += f" The default is `{default}`." if default else ""
        sections = [
            option_section(name, option, keys.get(f"{group}={name}", []))
            for name, option in options.items()
        ]
        text = "\n\n".join([f"# {group}", intro, *sections])
        made[f"reference/{group.replace('/', '-')}.md"] = f"{text}\n"
    return made


def page_of(path: str) -> str | None:
    """Where the site explains a file or a folder of conf/, None if nowhere.

    Args:
        path: from the root of the repository, such as `conf/data/copies.yaml`.

    Returns:
        Place on the site, such as `reference/data.md#copies`.
    """
    if path == "conf/config.yaml":
        return "reference/config.md"
    top, _, rest = path.partition("/")
    if top != "conf" or not rest:
        return None
    group, _, option = rest.rpartition("/") if rest.endswith(".yaml") else (rest, "", "")
    page = f"reference/{group.replace('/', '-')}.md"
    return page + f"#{option.removesuffix('.yaml')}" * bool(option)


def option_section(name: str, option: Schema, keys: list[tuple[str, Schema]]) -> str:
    """The section about one option."""
    target = option["properties"].get("_target_", {}).get("default", "")
    docs = docstrings(target)
    summary = _cell(re.sub(r"^[a-z]+(?=[ ,])", lambda w: w[0].capitalize(), option["description"]))
    parts = [f"## {name}", "" if docs and docs[0].startswith(summary) else summary]
    needs, breaks = (option.get(name, {}) for name in ("needs", "breaks"))
    parts.append(f"It needs {'; '.join(needs.values())}." if needs else "")
    for why in dict.fromkeys(breaks.values()):
        lost = "; ".join(MEANINGS[name] for name, said in breaks.items() if said == why)
        parts.append(f"What needs {lost} is refused with it: {why}.")
    own = f"{option['prefix']}_target_" if target else ""
    parts.append(table([(key, schema) for key, schema in keys if key != own]))
    parts += [f"Calls `{target}`.", *docs] if target else []
    return "\n\n".join(filter(None, parts))


def table(keys: list[tuple[str, Schema]]) -> str:
    """Keys with their defaults and comments; of mappings, those that have a comment."""
    rows = [
        f"| `{key}` | {_default(schema)} | {_cell(schema.get('description', ''))} |"
        for key, schema in keys
        if "description" in schema or "properties" not in schema
    ]
    if not rows:
        return "It has no settings."
    return "\n".join(["| key | default | meaning, and what is allowed |", "|---|---|---|", *rows])


def _default(schema: Schema) -> str:
    """A default as a YAML file has it; of several lines the first."""
    if "properties" in schema:
        return ""
    value = schema.get("default", "???")
    first = value.partition("\n")[0] if isinstance(value, str) else value
    text = yaml.safe_dump(first, default_flow_style=True, width=10**6)
    return f"`{text.splitlines()[0]}`"


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


def _escaped(text: str) -> str:
    """Text without the meaning that Markdown gives to some characters; code stays."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


if __name__ == "__main__":
    print("\n".join(pages().values()))  # noqa: T201 - the output of the command
