"""``kann compare``: networks from files."""

import json

import numpy as np
import pytest

import kann


@pytest.fixture
def files(tmp_path):
    """Two slow networks and a fast one: an operator, moments, and states."""
    found = []
    for seed, (name, moduli) in enumerate({"slow": (0.9, 0.8), "slower": (0.92, 0.81), "fast": (0.2, 0.1)}.items()):
        states = [np.random.default_rng(seed).normal(size=(30, 1, 2))]
        for _ in range(6):
            states.append(states[-1] * np.array(moduli))
        values = np.concatenate(states, axis=1)
        path = tmp_path / f"{name}.npz"
        if name == "slow":
            kann.fit(values).save(path)
        elif name == "slower":
            kann.Moments.of(values).save(path)
        else:
            path = path.with_suffix(".npy")
            np.save(path, values)
        found.append(path)
    return found


def test_a_page_and_a_table_are_written(run, files, tmp_path):
    found = run("compare", *files, "--kind", "spectrum", "-o", "c.html", "--csv", "c.csv")
    assert found.exit_code == 0, found.output
    assert next(line for line in found.output.splitlines() if line.startswith("slow ")).split()[1] == "slower"
    assert "slower" in (tmp_path / "c.html").read_text(encoding="utf-8")
    assert (tmp_path / "c.csv").read_text().splitlines()[1].startswith("slow,slower,")
    again = run("compare", *files, "--kind", "spectrum", "-o", "c.html")
    assert again.exit_code == 1
    assert "exists; pass --force" in again.output


def test_numbers_for_programs(run, files):
    found = run("compare", *files, "--kind", "spectrum", "--weights", "equal", "--rank", "2", "--json")
    numbers = json.loads(found.output)
    assert numbers["names"] == ["slow", "slower", "fast"]
    assert numbers["matrix"][0][1] < numbers["matrix"][0][2]
    assert numbers["low"][0][1] is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda files: files[:1], "holds 1 of them; pass two or more"),
        (lambda files: [files[0], files[0]], "a file is named twice; pass each once"),
        (lambda files: [*files, "--kind", "looks"], "kind='looks' is unknown"),
        (lambda files: [files[0], "none.npz"], "none.npz"),
        (lambda files: files, "responses are of operators that read inputs"),
    ],
)
def test_what_cannot_be_compared_is_one_line(run, files, arguments, text):
    found = run("compare", *arguments(files))
    assert found.exit_code == 1
    assert text in found.output
    assert len(found.output.splitlines()) == 1


def test_names_are_no_formulas_and_steer_no_terminal_in_a_table(run, files, tmp_path):
    moved = [
        file.rename(file.with_stem(name)) for file, name in zip(files, ("=cmd|", "\x1b[31mred", "-1"), strict=True)
    ]
    found = run("compare", *moved, "--kind", "spectrum", "--csv", "c.csv")
    assert found.exit_code == 0, found.output
    text = (tmp_path / "c.csv").read_text(encoding="utf-8")
    cells = [cell for line in text.splitlines()[1:] for cell in line.split(",")[:2]]
    assert {"'=cmd|", "'-1", "␛[31mred"} == set(cells)
    assert "\x1b" not in text + found.output
