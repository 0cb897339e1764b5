"""The table of coverage in the manual is that of the committed results."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def benchmark():
    """Load ``benchmarks/intervals.py``, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("intervals", ROOT / "benchmarks" / "intervals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_coverage_of_the_committed_results():
    intervals = benchmark()
    results = json.loads(intervals.RESULTS.read_text())
    assert list(results) == list(intervals.KINDS)
    assert "".join(intervals.table(results)) in (ROOT / "docs" / "trust.md").read_text()


def test_cells_outside_of_93_to_97_percent_are_marked():
    intervals = benchmark()
    entry = {"coverage": 0.95, "objected": 0.0}
    cells = {
        str(count): entry | {"coverage": value}
        for count, value in zip(intervals.COUNTS, (0.92, 0.93, 0.95, 0.97, 0.98), strict=True)
    }
    row = list(intervals.table({"same": cells}))[-1].split("|")
    assert ["✗" in cell for cell in row[2:-1]] == [True, False, False, False, True]
