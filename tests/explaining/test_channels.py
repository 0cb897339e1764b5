"""Names of what a network reads: in what pushes modes, in sentences, and on the page."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from kann.errors import KannError
from kann.explaining.options import Options
from kann.explaining.sequences import Sequences, reads_channels
from tests.explaining import networks
from tests.explaining.networks import numbers, seeded, words
from tests.reporting.html_pages import content_of


class Mixed(nn.Module):
    """A recurrent layer that reads mixtures of the channels."""

    def __init__(self, width=3, *, bias=True):
        super().__init__()
        self.mix = nn.Linear(2, width, bias=bias)
        self.rnn, self.head = nn.GRU(width, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        """The last state decides."""
        return self.head(self.rnn(self.mix(x))[0][:, -1])


@pytest.fixture(scope="module")
def found():
    data = numbers(torch.Generator().manual_seed(0))
    return kann.explain(seeded(networks.LinearNetwork), data, channels=["force", "gate"], progress=False)


def test_what_pushes_modes_is_called_by_its_name(found):
    assert found.movers.names == ("force", "gate")
    text = " ".join(found.sentences)
    assert "“force”" in text or "“gate”" in text
    assert "input 0" not in text


def test_the_page_calls_channels_by_their_names(found, tmp_path):
    text, page, _ = content_of(found.report(tmp_path / "r.html"))
    assert page["channel_names"] == ["force", "gate"]
    assert ">force</text>" in text
    assert "input 0" not in text
    bars = [bar["name"] for card in page["cards"] for bar in card["movers"]["up"]["bars"]]
    assert set(bars) <= {"force", "gate"}


def test_another_number_of_names_is_refused(generator, untyped):
    model, data = seeded(networks.LinearNetwork), numbers(generator)
    with pytest.raises(
        KannError, match="channels= has 3 names, and the data have 2 at each step; pass one name for each"
    ):
        kann.explain(model, data, channels=["a", "b", "c"])
    with pytest.raises(KannError, match="channels= has 'a' twice; pass different names"):
        kann.explain(model, data, channels=["a", "a"])
    with pytest.raises(KannError, match="channels='force' is one text; pass a list of 2 names"):
        kann.explain(model, data, channels="force")
    with pytest.raises(KannError, match="channels=3 is no list; pass a list of 2 names"):
        kann.explain(model, data, channels=3)
    with pytest.raises(KannError, match="the network reads numbers of words; pass tokens="):
        kann.explain(seeded(networks.Tagger), words(generator), channels=["a"])


def test_mixtures_of_channels_are_not_called_by_their_names(generator):
    found = kann.explain(seeded(Mixed), numbers(generator), channels=["force", "gate"], progress=False)
    assert found.movers.names == ("input 0", "input 1", "input 2")
    assert "The layer does not read the channels themselves, but what other layers make of them" in " ".join(
        found.choices
    )


@pytest.mark.parametrize("silent", [False, True])
def test_mixtures_of_centred_channels_are_mixtures(silent, generator):
    x = numbers(generator)
    x -= x.mean(dim=1, keepdim=True)
    if silent:
        x[0] = 0
    model, sequences = seeded(lambda: Mixed(2, bias=False)), np.arange(len(x))
    states = kann.record(model, x, layer="rnn", inputs=True)
    assert not reads_channels(Sequences(model, x, Options()), sequences, states)


@pytest.mark.parametrize("kind", ["padded on the left", "read backwards"])
def test_channels_are_found_wherever_they_begin(kind, generator):
    model, x = seeded(networks.LinearNetwork), numbers(generator).double().numpy()
    mask = np.arange(x.shape[1]) >= np.arange(len(x))[:, None] % 3
    options = {"padded on the left": {"lengths": mask}, "read backwards": {}}[kind]
    read = torch.tensor(x).float()
    if kind == "read backwards":
        read = read.flip(1)
    states = kann.record(model, read, layer="unit", inputs=True, **options)
    assert reads_channels(Sequences(model, x, Options(**options)), np.arange(len(x)), states)


def test_movers_take_names_of_inputs(rng):
    states = kann.States.from_padded(rng.normal(size=(6, 20, 3)), inputs=rng.normal(size=(6, 20, 2)))
    koopman = kann.fit(states)
    assert kann.movers(koopman, states, names=["force", "gate"]).names == ("force", "gate")
    with pytest.raises(KannError, match="names= has 1 names, and the states were recorded with 2 inputs"):
        kann.movers(koopman, states, names=["force"])
    with pytest.raises(KannError, match="names= are of inputs, and these modes are pushed by steps"):
        kann.movers(koopman, states, by="steps", names=["force", "gate"])


def test_a_report_without_signals_has_no_channels_to_name(rng, tmp_path):
    states = kann.States.from_padded(rng.normal(size=(6, 20, 3)))
    with pytest.raises(KannError, match="channels= names the channels of signals, and there are none"):
        kann.report(tmp_path / "r.html", kann.fit(states), states, channels=["force"])
    with pytest.raises(KannError, match="channels= has 1 names, and the signals have 2 channels"):
        kann.report(
            tmp_path / "r.html", kann.fit(states), states, signals=list(np.ones((6, 20, 2))), channels=["force"]
        )
