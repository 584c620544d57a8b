"""The matrix of attacks and defences."""

from run_folders import record

from benchmarks.robustness import draw, matrix, table

CELLS = {
    ("mean", "none"): ("0.9", ""),
    ("mean", "pixel_pattern"): ("0.8", "0.7"),
    ("krum", "none"): ("0.7", ""),
}


def jobs():
    for seed in (0, 1):
        for (defence, attack), (accuracy, success) in CELLS.items():
            row = {"round": "1", "global/accuracy": accuracy, "attack/success": success}
            if seed:
                row["global/accuracy"] = str(float(accuracy) - 0.1)
            yield record([row], {"aggregation": defence, "attack": attack}, seed=seed)


def test_seeds_are_averaged_and_attacks_without_a_backdoor_have_no_success(tmp_path):
    found = list(jobs())
    accuracy, success = (matrix(found, c) for c in ("global/accuracy", "attack/success"))
    assert table(accuracy).splitlines()[2:] == [
        "| `mean` | 85.0 | 75.0 |",
        "| `krum` | 65.0 |  |",
    ]
    assert success.attacks == ["pixel_pattern"]
    assert success.values[0] == [70.0]
    draw({"global/accuracy": accuracy, "attack/success": success}, tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").stat().st_size > 1000
