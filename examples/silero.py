"""What does a voice activity detector remember, and for how long? Silero's LSTM, h and c together, on speech.

    pip install 'kann[torch]' silero-vad
    python examples/silero.py speech.wav other_speech.wav    # 16 kHz, one channel, 16 bits

The source archive of silero-vad has speech: tests/data/test.wav and examples/cpp_libtorch/aepyx.wav. The operator is
fitted to the first file; the second one judges it. The network is Silero's own, rebuilt here so that its cell can be
recorded and its states replaced; its probabilities are those of the package.
"""

import importlib.util
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import kann

RATE, FRAME, CONTEXT = 16_000, 512, 64
"""Samples a second, samples of a frame (32 ms), and samples of the frame before that the network reads again."""

PIECE = 125
"""Frames of a sequence: recordings are cut into pieces of four seconds."""

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
        x = self.stft(pad(frames.flatten(0, 1)[:, None], (0, CONTEXT), mode="reflect"))
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for convolution in self.encoder:
            x = convolution(x).relu()
        read = x.reshape(*frames.shape[:2], 128)
        state, hidden = (read.new_zeros(len(read), 128),) * 2, []
        for step in read.unbind(1):
            state = self.cell(step, state)
            hidden.append(state[0])
        return self.head(torch.stack(hidden, dim=2).relu()).transpose(1, 2)


def package_model() -> torch.jit.ScriptModule:
    """The model inside the package, which needs no import of it."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise SystemExit("pip install silero-vad")
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


def frames_of(path: str) -> Tensor:
    """Frames (t, samples) of a recording, each with the end of the one before."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path} is not 16 kHz, one channel, 16 bits")
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    audio = torch.from_numpy(samples.astype(np.float32) / 2**15)
    whole = len(audio) // FRAME * FRAME
    return pad(audio[:whole], (CONTEXT, 0)).unfold(0, FRAME + CONTEXT, FRAME)


def pieces(frames: Tensor) -> Tensor:
    """The frames cut into sequences of `PIECE` frames."""
    count = len(frames) // PIECE
    return frames[: count * PIECE].reshape(count, PIECE, -1)


@torch.no_grad()
def largest_difference(model: VoiceDetector, package: torch.jit.ScriptModule, frames: Tensor) -> float:
    """How far our probabilities are from the package's."""
    package.reset_states()
    theirs = torch.stack([package(frame[None, CONTEXT:], RATE)[0, 0] for frame in frames])
    return float((model(frames[None])[0, :, 0].sigmoid() - theirs).abs().max())


def main(fitted: str, judging: str) -> None:
    """Print what the operator is worth on speech that was not fitted, and which coordinates decide."""
    package = package_model()
    model = detector(package)
    print(f"probabilities differ from the package's by {largest_difference(model, package, frames_of(judging)):.1e}")
    where = {"layer": "cell", "state": "hc", "inputs": True, "progress": False}
    states, others = (kann.record(model, pieces(frames_of(path)), **where) for path in (fitted, judging))
    for driven in (False, True):
        koopman = kann.fit(states, rank="auto", driven=driven)
        error, copying = (kann.relative_error(each, others) for each in (koopman, kann.copying))
        print(koopman, kann.trust(koopman, states), sep="\n")
        print(f"other speech: relative error {error:.4f}, copying {copying:.4f}")
    koopman = kann.fit(states, rank=16, driven=True)
    print(kann.effects(model, pieces(frames_of(judging)), koopman, states, layer="cell", state="hc", fill="linear"))


if __name__ == "__main__":
    main(*sys.argv[1:3])
