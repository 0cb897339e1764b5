"""``kann reproduce``: the paper's experiments, and their tables 'paper / ours'."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kann.cli.errors import one_line_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kann_experiments.results import Reproduction

commands = typer.Typer(
    help="Repeat an experiment of the paper: train, analyse, print the table 'paper / ours', draw the figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PIPED_WIDTH = 140
"""Columns of a table that is not printed to a terminal."""

Quick = Annotated[
    bool, typer.Option("--quick", help="One network on little data, in under three minutes, to see table and figures.")
]

HOW_TO_GO_ON = "interrupted; run the same command again to go on"

CopyArch = StrEnum("CopyArch", ["dtriv", "dtriv100", "rnn", "gru", "lstm", "all"])
FlipFlopArch = StrEnum("FlipFlopArch", ["gru"])
EcgArch = StrEnum("EcgArch", ["lstm", "gru", "all"])
SentimentArch = StrEnum("SentimentArch", ["gru", "lstm", "rnn", "all"])

DesignPart = StrEnum("DesignPart", ["during", "sizes", "memory", "all"])
TrainedArch = StrEnum("TrainedArch", ["gru", "rnn", "lstm"])

Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, mps.")]
Out = Annotated[Path, typer.Option(help="Folder for networks, figures and results.json.")]
Seed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, one network each.")]
AsPrinted = Annotated[
    bool, typer.Option("--as-printed", help="Train exactly as the paper's table says, even where that is too little.")
]


@commands.command(
    epilog="Example: kann reproduce copy --arch gru --seeds 3 --out runs/copy",
    short_help="The copy task: remember three digits over thirty blanks.",
)
def copy(
    arch: Annotated[
        CopyArch, typer.Option(help="The recurrent layer, or all of them. dtriv100 moves the base of its matrix.")
    ] = CopyArch.dtriv,
    device: Device = "cpu",
    out: Out = Path("runs/copy"),
    seed: Seed = 0,
    seeds: Seeds = 5,
    as_printed: AsPrinted = False,
    zero_blanks: Annotated[
        bool, typer.Option("--zero-blanks", help="Code a blank as zeros, as the paper says, not as a character.")
    ] = False,
    quick: Quick = False,
) -> None:
    """Repeat the paper's copy task: remember three digits over thirty blanks.

    Networks that are already in the folder are used again. A run that was interrupted goes on where it stopped.
    """
    with one_line_errors(HOW_TO_GO_ON):
        if quick:
            _quick("copy", out)
            return
        from kann_experiments.copy import reproduce

        settings = {"printed": as_printed, "zero_blanks": zero_blanks}
        _run(reproduce, arch, device=device, out=out, seeds=range(seed, seed + seeds), **settings)


@commands.command(
    epilog="Example: kann reproduce ecg --arch gru --seeds 1 --out runs/ecg",
    short_help="Heartbeats: what an autoencoder of them learnt.",
)
def ecg(
    arch: Annotated[EcgArch, typer.Option(help="The recurrent layers, or both.")] = EcgArch.lstm,
    device: Device = "cpu",
    out: Out = Path("runs/ecg"),
    seed: Seed = 0,
    seeds: Seeds = 1,
    as_printed: AsPrinted = False,
    as_notebook: Annotated[
        bool,
        typer.Option("--as-notebook", help="Train as the authors' notebook: one beat at a time. Hours."),
    ] = False,
    quick: Quick = False,
) -> None:
    """Repeat the paper's ECG classification: what an autoencoder of heartbeats learnt.

    The data set is looked for where 'kann data path ecg5000' says, and downloaded if it is not there. Networks that are
    already in the folder are used again. A run that was interrupted goes on where it stopped.
    """
    with one_line_errors(HOW_TO_GO_ON):
        if quick:
            _quick("ecg", out)
            return
        from kann_experiments.ecg import reproduce

        settings = {"printed": as_printed, "notebook": as_notebook}
        _run(reproduce, arch, device=device, out=out, seeds=range(seed, seed + seeds), **settings)


@commands.command(
    epilog="Example: kann reproduce sentiment --arch gru --device cuda --out runs/sentiment",
    short_help="Film reviews: which modes read which words.",
)
def sentiment(
    arch: Annotated[SentimentArch, typer.Option(help="The recurrent layer, or all three.")] = SentimentArch.gru,
    device: Device = "cpu",
    out: Out = Path("runs/sentiment"),
    seed: Seed = 0,
    seeds: Seeds = 1,
    as_printed: AsPrinted = False,
    word_pieces: Annotated[
        Path | None,
        typer.Option(help="The authors' imdb.vocab: read reviews as their code does, in word pieces."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="The authors' gru_weights_….pt, with --word-pieces: analyse it instead of training."),
    ] = None,
    quick: Quick = False,
) -> None:
    """Repeat the paper's sentiment analysis of film reviews: which modes read which words.

    The data set is looked for where 'kann data path imdb' says, and downloaded if it is not there. Networks that are
    already in the folder are used again. A run that was interrupted goes on where it stopped.
    """
    with one_line_errors(HOW_TO_GO_ON):
        if quick:
            _quick("sentiment", out)
            return
        from kann_experiments.sentiment import reproduce

        settings = {"printed": as_printed, "pieces": word_pieces, "weights": weights}
        _run(reproduce, arch, device=device, out=out, seeds=range(seed, seed + seeds), **settings)


@commands.command(
    epilog="Example: kann reproduce flipflop --seeds 3 --out runs/flipflop",
    short_help="The flip-flop: bits that last until a pulse sets them. Not in the paper.",
)
def flipflop(
    device: Device = "cpu",
    out: Out = Path("runs/flipflop"),
    seed: Seed = 0,
    seeds: Seeds = 5,
    quick: Quick = False,
) -> None:
    """Analyse networks that hold three bits until pulses set them: operators, fixed points and live effects.

    The paper does not have this task, which is the field's standard. Networks that are already in the folder are used
    again. A run that was interrupted goes on where it stopped.
    """
    with one_line_errors(HOW_TO_GO_ON):
        if quick:
            _quick("flipflop", out)
            return
        from kann_experiments.flipflop import reproduce

        _run(reproduce, FlipFlopArch.gru, device=device, out=out, seeds=range(seed, seed + seeds))


@commands.command(
    epilog="Example: kann reproduce balanced --task flipflop --seeds 3 --out runs/balanced",
    short_help="How few balanced coordinates keep the decisions of trained networks. Not in the paper.",
)
def balanced(
    task: Annotated[
        str,
        typer.Option(
            help="sentiment, ecg, copy, flipflop, counting for 2 to 10 classes, or small-sentiment; or the shipped "
            "networks as shipped-sentiment and shipped-ecg."
        ),
    ] = "flipflop",
    arch: Annotated[str, typer.Option(help="The recurrent layer, or all.")] = "all",
    learned: Annotated[
        bool, typer.Option("--learned", help="Compare balanced coordinates with subspaces learned by gradient instead.")
    ] = False,
    device: Device = "cpu",
    out: Out = Path("runs/balanced"),
    runs: Annotated[Path, typer.Option(help="Folder of the networks of all experiments.")] = Path("runs"),
    seed: Seed = 0,
    seeds: Seeds = 5,
) -> None:
    """Keep only a few coordinates of the state of trained networks: balanced ones, modes, components, readout, random.

    Networks that are already in the folder are used again, others are trained.
    """
    with one_line_errors(HOW_TO_GO_ON):
        from kann_experiments.balanced import ARCHITECTURES, learn, reproduce, summarise_counting, summarise_learned

        where: dict[str, Any] = {"out": out, "runs": runs, "seeds": range(seed, seed + seeds), "device": device}
        for name in [each for each in ARCHITECTURES if each.partition("-")[0] == task] or [task]:
            for own in ARCHITECTURES.get(name, (arch,)) if arch == "all" else (arch,):
                if learned:
                    learn(name, own, **where)
                else:
                    _print(reproduce(name, own, **where))
        if learned:
            _console().print(f"Summary: {summarise_learned(out)}")
        elif task == "counting" and arch == "all":
            _console().print(f"Summary: {summarise_counting(out, seeds=where['seeds'])}")


@commands.command(
    epilog="Example: kann reproduce compare --seeds 5 --fresh 5 --out runs/compare",
    short_help="Thirty small networks, all pairs: which are alike inside? Not in the paper.",
)
def compare(
    out: Out = Path("runs/compare"),
    seed: Seed = 0,
    seeds: Seeds = 5,
    fresh: Annotated[
        int, typer.Option(min=0, help="How many more seeds to judge the settings on that were best for the others.")
    ] = 0,
    angular_pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of each kind on which DSA's angular distance is timed.")
    ] = 0,
    angular_seeds: Annotated[
        int, typer.Option(min=0, help="Seeds between whose networks DSA's angular distance is measured: it is slow.")
    ] = 0,
) -> None:
    """Compare RNNs, GRUs and LSTMs on two tasks by every distance: kann's, DSA, InputDSA, CKA.

    DSA and InputDSA are measured if dsa-metric is installed (pip install 'kann[bench]'). Networks that are already in
    the folder are used again.
    """
    with one_line_errors(HOW_TO_GO_ON):
        from kann_experiments.comparing import reproduce

        own, others = range(seed, seed + seeds), range(seed + seeds, seed + seeds + fresh)
        angular = {"angular_pairs": angular_pairs, "angular_seeds": angular_seeds}
        _print(reproduce(out=out, seeds=own, fresh=others, **angular))


@commands.command(
    epilog="Example: kann reproduce training --seeds 10 --out runs/training",
    short_help="When do eigenvalues reach the unit circle, and when does the loss fall? Not in the paper.",
)
def training(
    arch: Annotated[TrainedArch, typer.Option(help="The recurrent layer.")] = TrainedArch.gru,
    out: Out = Path("runs/training"),
    seed: Seed = 0,
    seeds: Seeds = 10,
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="Give each sequence the answer of another: a baseline without memory.")
    ] = False,
) -> None:
    """Watch networks learn the copy task and the flip-flop: eigenvalues, loss and gradients, and the film.

    Trainings that are already in the folder are used again.
    """
    with one_line_errors(HOW_TO_GO_ON):
        from kann_experiments.learning import TASKS, reproduce

        for task in TASKS:
            _print(reproduce(task, arch=str(arch), out=out, seeds=range(seed, seed + seeds), shuffled=shuffled))


@commands.command(
    epilog="Example: kann reproduce design --part memory --out runs/design",
    short_help="Networks while they train, how small they may be, and how to make them remember. Not in the paper.",
)
def design(
    part: Annotated[
        DesignPart, typer.Option(help="During training, sizes that suffice, memory by design, or all of them.")
    ] = DesignPart.all,
    out: Out = Path("runs/design"),
    quick: Quick = False,
) -> None:
    """Follow up the paper's outlook: watch its networks train, and design networks by their operators.

    Trainings that are already in the folder are used again.
    """
    with one_line_errors(HOW_TO_GO_ON):
        from kann_experiments import design

        if quick:
            for result in design.quick(out):
                _print(result)
            return
        for name in design.PARTS if part == "all" else (str(part),):
            for result in design.reproduce(name, out=out):
                _print(result)


@commands.command(
    name="state-space",
    epilog="Example: kann reproduce state-space --seeds 1 --out runs/state-space",
    short_help="A small Mamba: which coordinates of its state carry the answer. Not in the paper.",
)
def state_space(
    out: Out = Path("runs/state-space"),
    seed: Seed = 0,
    seeds: Seeds = 3,
    quick: Quick = False,
) -> None:
    """Analyse the state of a small Mamba on bracket depth, associative recall and copying, next to an LSTM.

    Networks and measurements that are already in the folder are used again.
    """
    with one_line_errors(HOW_TO_GO_ON):
        from kann_experiments import state_space

        for result in (
            state_space.quick(out) if quick else state_space.reproduce(out=out, seeds=range(seed, seed + seeds))
        ):
            _print(result)


def _quick(task: str, out: Path) -> None:
    """Run the quick version of an experiment."""
    from kann_experiments.quick import QUICK

    _print(QUICK[task](out=out))


def _run(reproduce: Callable[..., "Reproduction"], arch: StrEnum, **settings: Any) -> None:
    """Run an experiment for one architecture or for all of them, and print the table of each."""
    archs = [arch]
    if arch == "all":
        archs = [each for each in type(arch) if each != "all"]
    for each in archs:
        _print(reproduce(each.value, **settings))


def _print(result: "Reproduction") -> None:
    """Print the table, how the training differs from the paper's, and where the files are."""
    console = _console()
    console.print(_table(result))
    if result.notes:
        console.print(f"Trained otherwise than the paper's table says: {', '.join(result.notes)}.")
    console.print(f"Results and figures: {result.files[0].parent}")


def _console() -> "Console":
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=PIPED_WIDTH, highlight=False)


def _table(result: "Reproduction") -> "Table":
    """The paper's numbers and ours; rows that do not hold are bold."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kann_experiments.results import columns, row_cells

    count = len(result.seeds)
    table = Table(title=f"{result.title}, {count} seed{'s' * (count > 1)}", box=SIMPLE_HEAD)
    titles = columns(result.rows)
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i in (0, 4) else "right")
    for row in result.rows:
        table.add_row(*row_cells(row, titles), style="bold" if row.verdict == "does not hold" else None)
    return table
