"""``kann watch``: what a network learnt and when, from a folder of its checkpoints."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import kann
from kann._format import percent
from kann.cli import loading
from kann.cli import loading as recording
from kann.cli.errors import AsJson, Force, one_line_errors, print_result, require_free
from kann.data.archives import reason
from kann.errors import KannError
from kann.progress import progress
from kann.reporting.packing import finite_or_none

ENDINGS = (".safetensors", ".pt", ".pth")
"""Files that are taken for checkpoints."""


def watch(
    factory: Annotated[str, typer.Argument(metavar="PKG.MODULE:FACTORY", help="A function that returns the model.")],
    checkpoints: Annotated[
        Path, typer.Option(help="A folder of weights (.safetensors, .pt), the step of training in each name.")
    ],
    data: Annotated[Path, typer.Option(help="Some dozen sequences that the model reads: .npy, or .npz with 'data'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The film to write: .html, .gif or .mp4.")] = Path(
        "film.html"
    ),
    history: Annotated[Path | None, typer.Option(help="Also write the history, such as history.npz.")] = None,
    layer: Annotated[str | None, typer.Option(help="The layer to watch; not needed if only one is recurrent.")] = None,
    state: Annotated[str, typer.Option(help="Which state of an LSTM: h, c or hc.")] = "h",
    rank: Annotated[str, typer.Option(help="The rank of the operators.")] = "0.99",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit an operator at each checkpoint of a training, follow its modes, and write the film."""
    with one_line_errors():
        loading.require_data(data)
        for path in filter(None, (out, history)):
            require_free(path, force=force)
        files = checkpoint_files(checkpoints)
        model, (values, lengths) = loading.model(factory, None), loading.model_data(data)
        read, lengths_of = recording.as_called(model, values, lengths)
        options: dict[str, Any] = {"layer": layer, "state": state, "rank": loading.number(rank), "lengths": lengths_of}
        monitor = kann.Monitor(model, read, every=1, **options)
        for step, file in progress(files.items(), what="checkpoints", total=len(files), unit="checkpoint"):
            loading.load_weights(model, file)
            _update(monitor, step, data)
        if history is not None:
            monitor.history.save(history)
        kann.film(out, monitor.history, about=f"{len(files)} checkpoints of {factory}, from {checkpoints}.")
        print_result(_in_words(monitor.history, out), _in_numbers(monitor.history, out), as_json=as_json)


def checkpoint_files(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder by their steps: the last whole number in each name."""
    if not folder.is_dir():
        raise KannError(f"{folder} is no folder; pass the one that holds the checkpoints")
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        numbers = re.findall(r"\d+", file.stem)
        if file.suffix not in ENDINGS or not numbers:
            continue
        step = int(numbers[-1])
        if step in found:
            raise KannError(f"{found[step].name} and {file.name} are both of step {step}; leave one of them out")
        found[step] = file
    if not found:
        raise KannError(
            f"{folder} holds no checkpoint; pass a folder of {', '.join(ENDINGS)} files with the step in their names, "
            "such as step-100.safetensors"
        )
    return dict(sorted(found.items()))


def _update(monitor: "kann.Monitor", step: int, data: Path) -> None:
    try:
        monitor.update(step=step)
    except (KannError, OSError, ImportError):
        raise
    except Exception as error:  # the user's model may raise anything
        raise KannError(
            f"the model cannot run on {data} ({type(error).__name__}: {reason(error)}); see 'kann --debug watch'"
        ) from error


def _in_words(history: kann.History, out: Path) -> str:
    rows = [
        f"step {each.step}: slowest trusted |λ| {each.figures['slow']:.4f}, held-out error "
        f"{percent(each.figures['error'])}, copying {percent(each.figures['copying'])}, "
        f"{each.figures['trusted']:.0f} modes trusted"
        for each in history
    ]
    return "\n".join([repr(history), *rows, str(out)])


def _in_numbers(history: kann.History, out: Path) -> dict[str, Any]:
    """The history in numbers, for ``--json``."""
    figures = {name: [finite_or_none(each.figures[name]) for each in history] for name in history[0].figures}
    return {"steps": history.steps.tolist(), "figures": figures, "path": str(out)}
