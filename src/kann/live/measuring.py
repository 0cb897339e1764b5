"""Measure what a network does with some coordinates of its state alone, and without them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from kann.analysis.filling import FILLS
from kann.analysis.live_effects import Effects
from kann.checks import require_choice, require_flag, require_instance, require_number, require_whole_number, shown
from kann.errors import KannError
from kann.fitting.koopman import Koopman
from kann.live.bench import Live
from kann.live.judging import gather, run_jobs
from kann.live.planning import make_plan, split
from kann.live.scoring import Scorer
from kann.live.trials import Running
from kann.recording.running import evaluation_mode


def effects(
    model: nn.Module,
    data: Any,
    koopman: Koopman,
    states: Any,
    *,
    readout: Any = None,
    metric: str | Callable[..., Any] | None = None,
    labels: Any = None,
    outputs: str = "class",
    threshold: float = 0.0,
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    fill: str = "curve",
    choose: bool = False,
    learn: bool = False,
    draws: int = 3,
    layer: str | None = None,
    state: str = "h",
    lengths: Any = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 128,
    device: Any = None,
    seed: int = 0,
    level: float = 0.95,
    progress: bool = True,
) -> Effects:
    """Test modes in the running network: what it still does if only they are kept of its state, or if they are removed.

    Beside the modes in the order of what they do (found by search), by contribution and by |λ|, the same number of
    principal components, of the readout's directions, and of random directions of the same variance are kept and
    removed. The order is searched on a quarter of the sequences, and everything is judged on the others. What was
    finished is returned if the work is interrupted.

    >>> import torch, kann
    >>> from torch import nn
    >>> class Reader(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return self.head(self.rnn(x)[0][:, -1])
    >>> model, x = Reader(), torch.randn(40, 6, 3)
    >>> states = kann.record(model, x)
    >>> found = kann.effects(model, x, kann.fit(states, basis="pca"), states, counts=(1, 4), draws=1)
    >>> float(found.kept["modes"][1])  # all four coordinates are kept
    1.0

    Parameters
    ----------
    model
        The model that the states were recorded from.
    data
        What the model reads, as for `kann.record`; other sequences than the states are of. A list of sequences is run
        in batches of like length, and a model whose ``forward`` takes ``lengths`` is told theirs.
    koopman
        The operator whose modes are tested.
    states
        Recorded states that fills are fitted to.
    readout
        The linear readout of the state: a module or its weight (o, d). If it is not given and not found, modes are
        ordered by their variance, and nothing is called "readout".
    metric
        ``"agreement"`` with the untouched network (the default without labels), ``"accuracy"`` (the default with
        labels), ``"loss"``, or a function of two arrays, the outputs of a batch and those of the untouched network (or
        the labels, if there are any), that returns one number for each sequence.
    labels
        The class of each sequence, or of each of its steps for a model that gives (sequences, steps, outputs). With
        several outputs that are labels or values, (outputs,) of each sequence or (steps, outputs).
    outputs
        As in `kann.agreement`. ``"class"``: the largest of several outputs, or whether a single one exceeds
        ``threshold``. ``"labels"``: each output is a yes-or-no answer of its own; agreement and accuracy are fractions
        of answers. ``"values"``: regression; agreement is R² of the outputs against those of the untouched network,
        accuracy is R² against the labels, and the loss is the squared error.
    threshold
        What an output must exceed.
    counts
        How many coordinates to keep and to remove. A conjugate pair of modes has two.
    fill
        What the rest of the state becomes, as in `kann.intervene`.
    choose
        Whether to search for the operator too, among several ranks, autonomous and driven: for each of ``counts`` the
        one that keeps most with so many coordinates.
    learn
        Whether to learn a direction by gradient through the running network, started from the first mode: the upper
        bound for one coordinate, called "learned".
    draws
        How often to draw random directions.
    layer, state
        Whose states were recorded, as in `kann.record`.
    lengths, forward, collate, batch_size, device
        How to read the data and to call the model, as in `kann.record`.
    seed
        Of the random directions.
    level
        Of the intervals over sequences.
    progress
        Whether to show a progress bar if it takes long.
    """
    _require_options(koopman, counts=counts, fill=fill, choose=choose, learn=learn, draws=draws, level=level)
    scorer = Scorer.of(metric, labels, outputs=outputs, threshold=threshold)
    running = Running(lengths=lengths, forward=forward, collate=collate, batch_size=batch_size, device=device)
    live = Live(model=model, states=states, width=koopman.dim, readout=readout, fill=fill, layer=layer, state=state)
    with evaluation_mode(model):
        bench = live.bench(*split(live.trials(data, running, scorer)))
        plan = make_plan(koopman, bench.search, counts=counts, choose=choose, learn=learn, draws=draws, seed=seed)
        results = run_jobs(plan.jobs, bench.judging, bench.search, show_progress=progress)
    return gather(plan, results, bench.judging, counts=tuple(map(int, counts)), fill=fill, draws=draws, level=level)


def _require_options(koopman: Any, *, counts: Any, fill: Any, choose: Any, learn: Any, draws: Any, level: Any) -> None:
    """Refuse wrong arguments before anything runs."""
    require_instance(koopman, Koopman, "koopman")
    require_choice(fill, "fill", FILLS)
    require_flag(choose, "choose")
    require_flag(learn, "learn")
    require_whole_number(draws, "draws", least=0)
    if isinstance(counts, str) or not isinstance(counts, Iterable) or not list(counts):
        raise KannError(f"counts={shown(counts)} are no numbers of coordinates; pass some, such as (1, 2, 4)")
    for count in counts:
        require_whole_number(count, "counts")
    if not 0 < require_number(level, "level", remedy="pass 0 < level < 1") < 1:
        raise KannError(f"level={level} is no probability; pass 0 < level < 1")
