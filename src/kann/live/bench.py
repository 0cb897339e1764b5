"""A running network with the sequences that its modes are tested on: some to choose with, the others to judge on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kann.analysis.coordinates import Coordinates, spread_of
from kann.analysis.filling import fit_fills
from kann.data.states import as_states
from kann.live.interventions import replacement, require_layer_width, require_same_width
from kann.live.ordering import Search
from kann.live.planning import split
from kann.live.readouts import readout_weight
from kann.live.replacing import only_target
from kann.live.scoring import Scorer
from kann.live.trials import Running, Trials, make_trials


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bench:
    """What live tests are made with; use it where the model is in evaluation mode."""

    search: Search
    """To find the operator and the order of its modes with."""
    judging: Trials
    """To judge on, on other sequences."""

    def alone(self, koopman: Any, modes: Sequence[int]) -> dict[int, tuple[float, float]]:
        """For each of these modes the score with it alone kept, and with it alone removed."""
        search = self.search
        chosen = [Coordinates.of_modes(koopman, mode) for mode in modes]
        fills = fit_fills(chosen, search.states, search.fill, spread=search.spread)
        return {
            mode: (
                float(self.judging.scores(replacement(fill, keep=True)).mean()),
                float(self.judging.scores(replacement(fill, keep=False)).mean()),
            )
            for mode, fill in zip(modes, fills, strict=True)
        }


def make_bench(
    model: nn.Module,
    data: Any,
    states: Any,
    running: Running,
    scorer: Scorer,
    *,
    width: int,
    readout: Any,
    fill: str,
    layer: str | None,
    state: str,
) -> Bench:
    """Cut the data into sequences for choosing and for judging, and run the untouched network on both."""
    target, recorded = only_target(model, layer, state), as_states(states)
    require_same_width(width, recorded.dim, "the recorded states have")
    require_layer_width(target, state, width)
    weight = readout_weight(model, readout, layer=layer, state=state, width=width)
    trials = make_trials(model, data, running, target=target, state=state, width=width, scorer=scorer)
    choosing, judging = (part.with_untouched() for part in split(trials))
    search = Search(trials=choosing, states=recorded, spread=spread_of(recorded), fill=fill, weight=weight)
    return Bench(search=search, judging=judging)
