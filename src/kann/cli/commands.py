"""The command line: parse, call, print."""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import kann
from kann.cli.visible import visible
from kann.errors import KannError

try:
    import typer
except ImportError as error:
    raise ImportError("the command line needs typer and rich: pip install 'kann[cli]'") from error

if TYPE_CHECKING:
    from kann.paper.results import Reproduction

PIPED_WIDTH = 140
"""Columns of a table that is not printed to a terminal."""

DEBUG = ContextVar("debug", default=False)
"""Whether errors show their traceback."""

app = typer.Typer(
    name="kann",
    help="Koopman Analysis of Neural Networks: explain a trained sequence network through one linear operator.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(
    help="Repeat an experiment of the paper: train, analyse, print the table 'paper / ours', draw the figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(reproduce, name="reproduce")


data = typer.Typer(
    help="The data sets of the paper's experiments: what is on this machine, and how to get the rest.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data, name="data")

CopyArch = StrEnum("CopyArch", ["dtriv", "rnn", "gru", "lstm", "all"])
EcgArch = StrEnum("EcgArch", ["lstm", "gru", "all"])
SentimentArch = StrEnum("SentimentArch", ["gru", "lstm", "rnn", "all"])
DataName = StrEnum("DataName", ["ecg5000", "imdb"])

Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1, mps.")]
Out = Annotated[Path, typer.Option(help="Folder for networks, figures and results.json.")]
Seed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, one network each.")]
AsPrinted = Annotated[
    bool, typer.Option("--as-printed", help="Train as the paper's table says, even where that does not suffice.")
]


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"kann {kann.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of all commands."""
    DEBUG.set(debug)


Force = Annotated[bool, typer.Option("--force", help="Replace the output if it is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog="Example: kann record mypackage.models:build --weights w.safetensors --data x.npy -o states.zarr")
def record(
    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")],
    data: Annotated[Path, typer.Option(help="What the model reads: .npy, or .npz with 'data' and maybe 'lengths'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The store to write, such as states.zarr.")],
    weights: Annotated[Path | None, typer.Option(help="Weights of the model: .safetensors, or .pt.")] = None,
    layer: Annotated[str | None, typer.Option(help="Which layer; the only recurrent one if not given.")] = None,
    state: Annotated[str, typer.Option(help="Of LSTMs: h, c or hc.")] = "h",
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also record what the layer reads, for a driven fit.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="How many sequences to run at once.")] = 32,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Run a model over data and write the hidden states of a layer to a store."""
    with _one_line_errors(f"interrupted; what was finished is in {out}; pass --force to start anew"):
        import kann.cli.loading as loading

        loading.require_free(out, force=force)
        if layer is not None and any(sign in layer for sign in "*?["):
            raise KannError(f"--layer {layer} may name several layers; pass one, or call kann.record from Python")
        model, (values, lengths) = loading.model(factory, weights), loading.model_data(data)
        states = kann.record(
            model, values, lengths=lengths, layer=layer, state=state, inputs=inputs, batch_size=batch_size, into=out
        )
        numbers = {"sequences": len(states), "states": int(states.lengths.sum()), "units": states.dim, "path": str(out)}
        _say(numbers, f"{states!r}\n{out}", as_json=as_json)


@app.command(
    epilog="Example: kann fit states.zarr -o operator.npz --rank 0.99 --driven, "
    "or kann fit s3://bucket/states.zarr --scheduler tcp://host:8786"
)
def fit(
    states: Annotated[
        str, typer.Argument(help="States (zarr store or its address such as s3://…, .npy, .npz) or moments (.npz).")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The operator to write.")] = Path("operator.npz"),
    rank: Annotated[str | None, typer.Option(help="Directions to keep: a number, or a share such as 0.99.")] = None,
    basis: Annotated[str, typer.Option(help="svd, pca or fourier.")] = "svd",
    driven: Annotated[bool, typer.Option("--driven", help="Fit what the inputs do apart.")] = False,
    ridge: Annotated[float, typer.Option(min=0, help="Penalty on the size of the operator.")] = 0.0,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler whose workers read the store: tcp://….")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit the operator of recorded states, write it, and print its leading eigenvalues; all modes with --json."""
    with _one_line_errors():
        import kann.cli.loading as loading

        loading.require_free(out, force=force)
        found = loading.states_or_moments(states)
        with loading.workers_for(found, scheduler) as who:
            if who:
                typer.echo(who, err=True)
            koopman = kann.fit(found, rank=loading.rank(rank), basis=basis, driven=driven, ridge=ridge)
        koopman.save(out)
        _say(loading.summary(koopman) | {"path": str(out)}, f"{koopman!r}\n{out}", as_json=as_json)


@app.command(epilog="Example: kann report operator.npz states.zarr -o report.html --tokens tokens.json")
def report(
    operator: Annotated[Path, typer.Argument(help="What 'kann fit' wrote.")],
    states: Annotated[str, typer.Argument(help="The states to show (zarr store or its address, .npy, .npz).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    tokens: Annotated[Path | None, typer.Option(help="JSON: for each sequence a list of words.")] = None,
    labels: Annotated[Path | None, typer.Option(help="JSON: the label of each sequence.")] = None,
    driven: Annotated[Path | None, typer.Option(help="The operator that reads the inputs, to compare with.")] = None,
    title: Annotated[str, typer.Option(help="The heading.")] = "What this network remembers by",
    about: Annotated[str, typer.Option(help="A paragraph about network and data.")] = "",
    modes: Annotated[int, typer.Option(min=1, help="For how many modes sequences are shown.")] = 20,
    force: Force = False,
) -> None:
    """Write a report that can be opened offline and explored."""
    with _one_line_errors():
        import kann.cli.loading as loading

        loading.require_free(out, force=force)
        koopman, shown = kann.Koopman.load(operator), kann.States.open(states)
        words, names = (None if path is None else loading.json_list(path) for path in (tokens, labels))
        beside = None if driven is None else kann.Koopman.load(driven)
        settings: dict[str, Any] = {"tokens": words, "labels": names, "driven": beside, "modes": modes}
        typer.echo(kann.report(out, koopman, shown, title=title, about=about, **settings))


@app.command(epilog='Example: kann highlight "The plot is not bad at all, and the acting is amazing."')
def highlight(
    text: Annotated[str | None, typer.Argument(help="What to read; standard input if it is - or left out.")] = None,
    mode: Annotated[list[int] | None, typer.Option(min=0, help="A mode to show; may be given several times.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a web page in place of printing.")] = None,
    force: Force = False,
) -> None:
    """Let the network that ships with kann read a text, and shade its words by what its modes make of them."""
    with _one_line_errors():
        import kann.cli.loading as loading
        from kann.cli.highlight import read_text, shade, show, write_page

        if html is not None:
            loading.require_free(html, force=force)
        shading = shade(read_text(text, sys.stdin.buffer), modes=mode)
        if html is None:
            show(shading)
        else:
            write_page(shading, html)
            typer.echo(html)


@app.command(epilog="Example: kann demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the reports.")] = Path("demo"),
) -> None:
    """Explain two networks, one that ships with kann and one trained on the spot, each in a report to open."""
    with _one_line_errors():
        from kann.cli.demo import run

        for shown in run(out):
            typer.echo("\n".join([*shown.says, f"  -> open {shown.path}", ""]))


def _say(numbers: dict[str, Any], text: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(numbers, allow_nan=False) if as_json else text)


@reproduce.command(
    epilog="Example: kann reproduce copy --arch gru --seeds 3 --out runs/copy",
    short_help="The copy task: remember three digits over thirty blanks.",
)
def copy(
    arch: Annotated[CopyArch, typer.Option(help="The recurrent layer, or all four.")] = CopyArch.dtriv,
    device: Device = "cpu",
    out: Out = Path("runs/copy"),
    seed: Seed = 0,
    seeds: Seeds = 5,
    as_printed: AsPrinted = False,
) -> None:
    """Repeat the paper's copy task: remember three digits over thirty blanks.

    Networks that are in the folder already are used again, and a run that was interrupted goes on where it stopped.
    """
    _reproduce("copy", arch, device=device, out=out, seeds=range(seed, seed + seeds), printed=as_printed)


@reproduce.command(
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
) -> None:
    """Repeat the paper's ECG classification: what an autoencoder of heartbeats learnt.

    The data set is looked for as 'kann data path ecg5000' says, and downloaded if it is not there. Networks that are in
    the folder already are used again, and a run that was interrupted goes on where it stopped.
    """
    _reproduce("ecg", arch, device=device, out=out, seeds=range(seed, seed + seeds), printed=as_printed)


@reproduce.command(
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
) -> None:
    """Repeat the paper's sentiment analysis of film reviews: which modes read which words.

    The data set is looked for as 'kann data path imdb' says, and downloaded if it is not there. Networks that are in
    the folder already are used again, and a run that was interrupted goes on where it stopped.
    """
    _reproduce("sentiment", arch, device=device, out=out, seeds=range(seed, seed + seeds), printed=as_printed)


def _reproduce(task: str, arch: StrEnum, **settings: Any) -> None:
    """Run an experiment for one architecture or for all, and print its tables."""
    with _one_line_errors("interrupted; run the same command again to go on"):
        experiment = importlib.import_module(f"kann.paper.{task}")
        for each in [arch] if arch != "all" else [other for other in type(arch) if other != "all"]:
            _show(experiment.reproduce(each.value, **settings))


@data.command("list", epilog="Example: kann data list")
def list_data() -> None:
    """List the data sets, and where they are on this machine."""
    with _one_line_errors():
        from kann.paper.data import status

        for each in status():
            where = str(each.path) if each.path else f"not here; 'kann data fetch {each.name}' downloads it"
            typer.echo(f"{each.name}: {each.about}, {each.size / 1e6:.0f} MB\n  {where}")


@data.command(epilog="Example: kann data fetch ecg5000")
def fetch(name: DataName) -> None:
    """Download a data set into the cache folder, check it, and print its path."""
    with _one_line_errors():
        from kann.paper.data import fetch

        typer.echo(fetch(str(name)))


@data.command(epilog="Example: kann data path imdb")
def path(name: DataName) -> None:
    """Print where a data set is on this machine, or say where it should be."""
    with _one_line_errors():
        from kann.paper.data import locate

        typer.echo(locate(str(name)))


@contextlib.contextmanager
def _one_line_errors(interrupted: str = "interrupted") -> Iterator[None]:
    """Say what went wrong in one line, without a traceback unless asked for, and exit with status 1."""
    if DEBUG.get():
        yield
        return
    try:
        yield
    except BrokenPipeError:
        # Who read our output has seen enough; what Python would still flush at the end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except ImportError as error:
        remedy = "" if "install" in str(error).lower() else "; pip install 'kann[paper]'"
        typer.echo(f"error: {visible(str(error))}{remedy}", err=True)
        raise typer.Exit(1) from None
    except (KannError, OSError) as error:
        typer.echo(f"error: {visible(' '.join(str(error).split()))}", err=True)
        raise typer.Exit(1) from None
    except Exception as error:
        if not type(error).__module__.startswith("distributed"):
            raise
        typer.echo(f"error: the Dask cluster gave up ({visible(' '.join(str(error).split()))})", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise typer.Exit(130) from None


def _show(result: "Reproduction") -> None:
    """Print the table, how the training differs from the paper's, and where the files are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    count = len(result.seeds)
    table = Table(title=f"{result.title}, {count} seed{'s' * (count > 1)}", box=SIMPLE_HEAD)
    for name, side in (("", "left"), ("paper", "right"), ("ours, mean", "right"), ("from – to", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for row in result.rows:
        table.add_row(*row.cells(), style=None if row.holds is not False else "bold")
    console.print(table)
    if result.notes:
        console.print(f"Trained otherwise than the paper's table says: {', '.join(result.notes)}.")
    console.print(f"Results and figures: {result.files[0].parent}")
