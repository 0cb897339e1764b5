"""What does a voice activity detector remember, and for how long? Silero's LSTM, h and c together, on speech.

    pip install 'kann[gallery]'
    python examples/silero.py gallery

The speech is in the source archive of silero-vad, which is looked for in $KANN_DATA_DIR or ~/.cache/kann and downloaded
there with pip once; after that nothing is read from the network. One minute of speech is explained, another recording
judges. The network is Silero's own, rebuilt here so that its cell can be recorded and its states replaced; its
probabilities are compared with those of the package first.
"""

import importlib.metadata
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import time
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import kann

RATE, FRAME, CONTEXT = 16_000, 512, 64
"""Samples a second, samples of a frame (32 ms), and samples of the frame before that the network reads again."""

STEP = FRAME / RATE
"""How long a step lasts, in seconds."""

PIECE, LONG_PIECE = 125, 312
"""Frames of a sequence: recordings are cut into pieces of four seconds, and of ten to see how long the past matters."""

NAMES = {
    "stft.forward_basis_buffer": "stft.weight",
    "decoder.rnn.": "cell.",
    "decoder.decoder.2.": "head.",
    **{f"encoder.{i}.reparam_conv.": f"encoder.{i}." for i in range(4)},
}
"""What the package calls its weights, and what they are called here."""


class VoiceDetector(nn.Module):
    """Spectrum, four convolutions, an LSTM cell of 128 units, and a head behind ReLU."""

    def __init__(self):
        super().__init__()
        self.stft = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        widths, strides = (129, 128, 64, 64, 128), (1, 2, 2, 1)
        self.encoder = nn.ModuleList(
            nn.Conv1d(widths[i], widths[i + 1], 3, stride=strides[i], padding=1) for i in range(4)
        )
        self.cell, self.head = nn.LSTMCell(128, 128), nn.Conv1d(128, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """The logit of speech for each frame: (b, t, samples) to (b, t, 1)."""
        read = self.read(frames)
        state, hidden = (read.new_zeros(len(read), 128),) * 2, []
        for step in read.unbind(1):
            state = self.cell(step, state)
            hidden.append(state[0])
        return self.head(torch.stack(hidden, dim=2).relu()).transpose(1, 2)

    def read(self, frames: Tensor) -> Tensor:
        """What the cell reads of each frame: (b, t, samples) to (b, t, 128)."""
        x = self.stft(pad(frames.flatten(0, 1)[:, None], (0, CONTEXT), mode="reflect"))
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for convolution in self.encoder:
            x = convolution(x).relu()
        return x.reshape(*frames.shape[:2], 128)


def package_model() -> torch.jit.ScriptModule:
    """The model inside the package, which needs no import of it."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise SystemExit("silero-vad is not installed: pip install 'kann[gallery]'")
    return torch.jit.load(Path(package.origin).parent / "data" / "silero_vad.jit")


def detector(package: torch.jit.ScriptModule) -> VoiceDetector:
    """The package's network for 16 kHz, with its weights."""
    weights = {}
    for name, value in package._model.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = value
    model = VoiceDetector().eval()
    model.load_state_dict(weights)
    return model


def source_archive() -> Path:
    """The source archive of the installed version, found on this machine or downloaded."""
    version = importlib.metadata.version("silero-vad")
    name = f"silero_vad-{version}.tar.gz"
    folders = [Path(os.environ.get("KANN_DATA_DIR", "~/.cache/kann")).expanduser(), Path("~/.cache/kann").expanduser()]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    folders[0].mkdir(parents=True, exist_ok=True)
    wanted = [f"silero-vad=={version}", "--no-deps", "--no-binary", "silero-vad", "-d", str(folders[0])]
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wanted], check=False)
    if done.returncode or not (folders[0] / name).exists():
        raise SystemExit(f"no speech: put {name} of https://pypi.org/project/silero-vad/#files into {folders[0]}")
    return folders[0] / name


def frames_of(file: "str | io.BufferedIOBase") -> Tensor:
    """Frames (t, samples) of a recording, each with the end of the one before."""
    with wave.open(file) as recording:  # type: ignore[arg-type]
        if (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit("a recording is not 16 kHz, one channel, 16 bits")
        samples = np.frombuffer(recording.readframes(recording.getnframes()), dtype=np.int16)
    audio = torch.from_numpy(samples.astype(np.float32) / 2**15)
    whole = len(audio) // FRAME * FRAME
    return pad(audio[:whole], (CONTEXT, 0)).unfold(0, FRAME + CONTEXT, FRAME)


RECORDINGS = ("/examples/cpp_libtorch/aepyx.wav", "/tests/data/test.wav")
"""Where the source archive has speech: nearly three minutes of it to fit, and one minute to judge by."""


def speech() -> list[Tensor]:
    """The recordings in the source archive as frames."""
    with tarfile.open(source_archive()) as archive:
        files = {each: next((m for m in archive.getmembers() if m.name.endswith(each)), None) for each in RECORDINGS}
        missing = [each for each, member in files.items() if member is None]
        if missing:
            raise SystemExit(f"{source_archive()} has no {missing[0]}; this script was written for silero-vad 6.2")
        return [frames_of(io.BytesIO(archive.extractfile(member).read())) for member in files.values()]


def pieces(frames: Tensor, size: int = PIECE) -> Tensor:
    """The frames cut into sequences of ``size`` frames."""
    count = len(frames) // size
    return frames[: count * size].reshape(count, size, -1)


@torch.no_grad()
def largest_difference(model: VoiceDetector, package: torch.jit.ScriptModule, frames: Tensor) -> float:
    """How far our probabilities are from the package's."""
    package.reset_states()
    theirs = torch.stack([package(frame[None, CONTEXT:], RATE)[0, 0] for frame in frames])
    return float((model(frames[None])[0, :, 0].sigmoid() - theirs).abs().max())


@torch.no_grad()
def forgetting(model: VoiceDetector, sequences: Tensor) -> np.ndarray:
    """|Δ probability| at each frame of a piece heard after another one and heard alone: (pieces, frames)."""
    alone = model(sequences)[..., 0].sigmoid()
    both = torch.cat([sequences.roll(1, dims=0), sequences], dim=1)
    return (model(both)[:, len(alone[0]) :, 0].sigmoid() - alone).abs().numpy()


def milliseconds_until(differences: np.ndarray, level: float, *, draws: int = 1000) -> tuple[float, float, float]:
    """When the mean difference has fallen below a level for good, and its 95 % interval over pieces."""

    def when(rows: np.ndarray) -> float:
        above = np.flatnonzero(rows.mean(axis=0) > level)
        return 1000 * STEP * (above.max() + 1 if len(above) else 0)

    rng = np.random.default_rng(0)
    drawn = [when(differences[rng.integers(len(differences), size=len(differences))]) for _ in range(draws)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return when(differences), float(low), float(high)


def memories(trust: kann.Trust) -> list[str]:
    """How long each trusted mode remembers: the time after which it has decayed to 1/e, with its interval."""
    lines = []
    for i in trust.trusted:
        mode, own = trust.koopman.modes[i], trust.modes[i]
        times = [-1000 * STEP / np.log(min(each, 1 - 1e-6)) for each in (mode.modulus, *own.interval)]
        lines.append(
            f"  mode {i}: |λ| {mode.modulus:.4f}, {times[0]:,.0f} ms (95 %: {times[1]:,.0f} to {times[2]:,.0f})"
        )
    return lines


DRAWS = 32
"""Draws of random combinations of the outputs. There are only 42 sequences, and with the usual 4 draws one coordinate
keeps between 91 and 96 % of the decisions, by the seed of the draws."""

WHERE = {"layer": "cell", "state": "hc", "progress": False}


def coordinates(model: VoiceDetector, fitted: Tensor, judging: Tensor) -> None:
    """Print how few balanced coordinates keep the decisions on other speech, next to the baselines."""
    balance = kann.balance(model, fitted, draws=DRAWS, **WHERE)
    states = kann.record(model, fitted, inputs=True, **WHERE)
    modes = kann.fit(states, rank=16, driven=True)
    print(balance, kann.effects(model, judging, balance, states, koopman=modes, **WHERE), sep="\n")
    drift(model, balance, states, judging)


@torch.no_grad()
def drift(model: VoiceDetector, balance: kann.Balance, states: kann.States, judging: Tensor) -> None:
    """Print the decisions kept if the state is completed once, one frame before too, and after every frame."""
    heard = model.read(judging)
    own = torch.from_numpy(np.asarray(kann.record(model, judging, **WHERE).values)).reshape(*heard.shape[:2], -1)

    def speech_in(h: Tensor) -> Tensor:
        return model.head(h[..., :128].relu().flatten(0, 1)[..., None].float()).reshape(h.shape[:2]) > 0

    for count in (1, 2, 4, 8, 16):

        def completed(h: Tensor, count: int = count) -> Tensor:
            return torch.from_numpy(balance.complete(balance.coordinates(h.numpy())[..., :count])).float()

        once = speech_in(completed(own)) == speech_in(own)
        hidden, cell = completed(own[:, :-1]).flatten(0, 1).split(128, dim=-1)
        after = torch.cat(model.cell(heard[:, 1:].flatten(0, 1), (hidden, cell)), dim=-1).unflatten(0, (len(own), -1))
        twice = speech_in(completed(after)) == speech_in(own[:, 1:])
        with kann.intervene(model, balance, states, keep=range(count), fill="linear", layer="cell", state="hc"):
            always = (model(judging)[..., 0] > 0) == speech_in(own)
        kept = ", ".join(f"{float(each.double().mean()):.1%}" for each in (once, twice, always))
        print(f"{count} coordinates kept once, one frame before too, after every frame: {kept}")


def over_folds(model: VoiceDetector, everything: Tensor, folds: int = 5) -> None:
    """Print the decisions kept on all speech, each fifth of it judged by what was fitted to the rest."""
    found: dict[str, list[np.ndarray]] = {"balanced": [], "pca": [], "readout": []}
    for fold in np.array_split(np.random.default_rng(0).permutation(len(everything)), folds):
        rest = everything[np.setdiff1d(np.arange(len(everything)), fold)]
        balance, states = kann.balance(model, rest, draws=DRAWS, **WHERE), kann.record(model, rest, **WHERE)
        effects = kann.effects(model, everything[fold], balance, states, draws=0, **WHERE)
        for name, scores in found.items():
            scores.append(effects.kept_scores[name])
    for name, scores in found.items():
        kept = np.concatenate(scores, axis=1)
        error = kept.std(axis=1, ddof=1) / np.sqrt(kept.shape[1])
        cells = [f"{mean:.1%} ± {own:.1%}" for mean, own in zip(kept.mean(axis=1), error, strict=True)]
        print(f"all speech, {folds} folds, {name}, {effects.counts} coordinates:", *cells)


@torch.no_grad()
def rests(model: VoiceDetector, states: kann.States) -> None:
    """Print where the cell comes to rest while it hears silence, and what it says there."""
    silence = model.read(torch.zeros(1, 1, FRAME + CONTEXT))[0, 0]
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    visited = np.asarray(states.values)[rng.choice(len(states.values), 200, replace=False)]
    points = kann.find_fixed_points(kann.recording.step_of(model, "cell"), visited, inputs=silence.numpy())
    print(f"hearing silence for ever: {points} in {time.perf_counter() - began:.0f} s")
    for i in np.flatnonzero(points.kinds == "fixed")[:3]:
        h = torch.from_numpy(points.points[i, :128]).float()
        probability = float(model.head(h.relu()[None, :, None]).sigmoid())
        slowest = -1000 * STEP / np.log(abs(points.eigenvalues[i, 0]))
        print(f"  at rest it says {probability:.1%} speech, and it comes to rest by 1/e in {slowest:,.0f} ms")


def main(folder: str = "gallery") -> None:
    """Print what the detector remembers and for how long, and write the page that explains it."""
    package = package_model()
    model = detector(package)
    fitted, judging = speech()
    print(f"{len(judging) * STEP:.0f} s of speech; largest difference from the package's probabilities ", end="")
    print(f"{largest_difference(model, package, judging):.1e}")
    differences = forgetting(model, pieces(fitted, LONG_PIECE))
    print(
        f"heard after another piece, the first frame's probability moves by {differences[:, 0].mean():.2f} on average"
    )
    for level in (0.1, 0.05, 0.01):
        at, low, high = milliseconds_until(differences, level)
        print(f"what was heard before moves the probability by less than {level} after {at:.0f} ms ", end="")
        print(f"(95 % over pieces: {low:.0f} to {high:.0f})")
    where = {"layer": "cell", "state": "hc", "inputs": True, "progress": False}
    states, others = (kann.record(model, pieces(frames), **where) for frames in (fitted, judging))
    for driven in (False, True):
        koopman = kann.fit(states, rank="auto", driven=driven)
        error, copying = (kann.relative_error(each, others) for each in (koopman, kann.copying))
        trust = kann.trust(koopman, states)
        print(koopman, trust, *memories(trust), sep="\n")
        print(f"other speech: relative error {error:.4f}, copying the state {copying:.4f}")
    coordinates(model, pieces(fitted), pieces(judging))
    everything = torch.cat([pieces(frames) for frames in (fitted, judging)])
    over_folds(model, everything)
    rests(model, states)
    found = kann.explain(model, everything, layer="cell", step_seconds=STEP, classes=["silence", "speech"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(*found.sentences, found.report(Path(folder) / "silero.html"), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
