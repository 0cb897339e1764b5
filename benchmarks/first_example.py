"""The first example of the README with 20 seeds: how often its sentence is delivered.

    python benchmarks/first_example.py                # 20 explanations, a few minutes on one core
    python benchmarks/first_example.py --seeds 3 --print

The sentence: one coordinate of 256 keeps at least nine in ten of the network's decisions, and the verdict is "found".
The seed draws the reviews and all that `kann.explain` draws. Results are written to ``benchmarks/first_example.json``.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import kann
from kann import zoo

REVIEWS, KEPT = 120, 0.9

RESULTS = Path(__file__).with_suffix(".json")


def explained(seed: int) -> dict[str, Any]:
    """Return what the first sentence says with one seed, and whether that is what the README promises."""
    gru = zoo.load("sentiment")
    reviews, words, labels = gru.draw(REVIEWS, seed=seed)
    options: Any = {"tokens": words, "labels": labels, "classes": ["negative", "positive"], "seed": seed}
    found = kann.explain(gru.network, reviews, progress=False, **options)
    facts: Any = found.facts
    kept: Any = facts.live.fewest
    score, others = (kept.score, kept.others) if kept else (0.0, {})
    return {
        "seed": seed,
        "verdict": found.verdict,
        "score": score,
        "others": others,
        "delivered": found.verdict == "found" and kept.count == 1 and score >= KEPT,
        "sentence": found.sentences[0],
    }


def main() -> None:
    """Explain the shipped network with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--print", action="store_true", help="do not write results")
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.seeds):
        rows.append(explained(seed))
        print(f"seed {seed}: {rows[-1]['delivered']}, {rows[-1]['sentence']}", flush=True)
    results = {"delivered": sum(row["delivered"] for row in rows), "of": len(rows), "seeds": rows}
    print(f"{results['delivered']} of {results['of']}")
    if not arguments.print:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
