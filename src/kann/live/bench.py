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
        if not modes:
            return {}
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Live:
    """Which states of a running network are replaced, and with what."""

    model: nn.Module
    states: Any
    """Recorded states that fills are fitted to."""
    width: int
    """How many units the operator is for."""
    readout: Any
    """As in `kann.effects`."""
    fill: str
    layer: str | None
    state: str

    def trials(self, data: Any, running: Running, scorer: Scorer) -> Trials:
        """The network with sequences to run it on."""
        target = only_target(self.model, self.layer, self.state)
        require_same_width(self.width, as_states(self.states).dim, "the recorded states have")
        require_layer_width(target, self.state, self.width)
        return make_trials(self.model, data, running, target=target, state=self.state, width=self.width, scorer=scorer)

    def bench(self, choosing: Trials, judging: Trials) -> Bench:
        """Run the untouched network on the sequences for choosing and on those that are judged."""
        states, place = as_states(self.states), {"layer": self.layer, "state": self.state, "width": self.width}
        search = Search(
            trials=choosing.with_untouched(),
            states=states,
            spread=spread_of(states),
            fill=self.fill,
            weight=readout_weight(self.model, self.readout, **place),
        )
        return Bench(search=search, judging=judging.with_untouched())
