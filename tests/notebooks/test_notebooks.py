"""The notebooks run as they are printed, with fewer steps and one seed, in one Jupyter kernel."""

import re
from itertools import chain

import pytest

QUICK = {
    r'"rounds=\d+"': '"rounds=2", "engine=eager", "trainer.devices=1", "batch_size=-1"',
    r"range\(3\)": "range(1)",
}
PICTURES = {"1-first-run": 4, "2-own-data-and-model": 3, "3-own-algorithm": 2}
PLACES = re.compile(r"/(home|root|tmp|work|usr)/|site-packages|\.venv")
MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def notebooks(root):
    """The notebooks by name."""
    import nbformat

    paths = sorted((root / "notebooks").glob("*.ipynb"))
    return {path.stem: nbformat.read(path, as_version=4) for path in paths}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def num_pictures(cells):
    outputs = [output for cell in cells for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_every_cell_runs_and_the_pictures_are_there(notebooks, tmp_path, monkeypatch):
    """One kernel for all three: most of the time would go into imports."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    cells = {}
    for name, notebook in notebooks.items():
        fresh = f"%reset -f\nimport os\nos.makedirs('{name}')\nos.chdir('{name}')"
        cells[name] = [new_code_cell(fresh)]
        for cell in code_cells(notebook):
            source = cell.source
            for pattern, replacement in QUICK.items():
                source = re.sub(pattern, replacement, source)
            cells[name].append(new_code_cell(source))
        cells[name].append(new_code_cell("os.chdir('..')"))
    everything = new_notebook(cells=[*chain.from_iterable(cells.values())])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(everything, kernel_name="python3", timeout=120, resources=place).execute()
    assert {name: num_pictures(found) for name, found in cells.items()} == PICTURES
    reports = {path.parent.name for path in tmp_path.glob("*/*/report.html")}
    assert reports == {"comparison", "own"}


def test_stored_outputs_are_small_and_have_pictures_but_no_warnings_and_no_paths(root, notebooks):
    assert {name: num_pictures(code_cells(n)) for name, n in notebooks.items()} == PICTURES
    for name, notebook in notebooks.items():
        assert (root / "notebooks" / f"{name}.ipynb").stat().st_size < MOST_BYTES
        for cell in code_cells(notebook):
            for output in cell.outputs:
                assert output.output_type != "error"
                assert output.get("name") != "stderr", output.text
                texts = [output.get("text", "")]
                data = output.get("data", {})
                texts += [text for kind, text in data.items() if kind.startswith("text/")]
                for text in texts:
                    assert "Warning" not in text and "[WARNING]" not in text
                    assert not PLACES.search(text)
