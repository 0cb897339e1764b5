# ruff: noqa: D102  # models in tests say what they are by their names
"""State-space models: complex diagonal recurrences, selective scans, matrix states, cells that read whole numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import kann
from tests.recording.models import EXACT


class LinearUnit(nn.Module):
    """A diagonal linear recurrent unit (LRU, S4D, S5): h' = λ h + x B with complex λ, written as its authors do."""

    def __init__(self, inputs=2, units=4):
        super().__init__()
        self.log_decay = nn.Parameter(torch.linspace(-4.0, -1.5, units))
        self.phase = nn.Parameter(torch.linspace(0.1, 2.5, units))
        self.real, self.imag = nn.Linear(inputs, units, bias=False), nn.Linear(inputs, units, bias=False)

    @property
    def eigenvalues(self):
        return torch.exp(torch.complex(-self.log_decay.exp(), self.phase))

    def forward(self, x, h=None):
        read = torch.complex(self.real(x), self.imag(x))
        return read if h is None else self.eigenvalues * h + read


class LinearNetwork(nn.Module):
    """The unit in a loop, and a head that reads real and imaginary parts."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = LinearUnit(), nn.Linear(8, 1)

    def forward(self, x):
        h = None
        for now in x.unbind(1):
            h = self.cell(now, h)
        return self.head(torch.view_as_real(h).transpose(1, 2).flatten(1))


@pytest.fixture(scope="module")
def trained():
    """A linear unit that learned to say whether what it read, weighted with time, is positive; in double precision."""
    torch.manual_seed(0)
    model = LinearNetwork().double()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        x = torch.randn(64, 20, 2, dtype=torch.float64)
        wanted = (x[:, :, 0] * 0.9 ** torch.arange(19.0, -1, -1)).sum(dim=1) > 0
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], wanted.double())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model.eval()


def by_modulus(eigenvalues):
    """Eigenvalues in an order that a test can compare: by modulus and then by imaginary part."""
    return eigenvalues[np.lexsort((eigenvalues.imag, np.abs(eigenvalues).round(8)))]


def with_conjugates(model):
    """The eigenvalues of a complex layer, and as those of real units their conjugates too."""
    own = model.cell.eigenvalues.detach().numpy()
    return by_modulus(np.concatenate([own, own.conj()]))


def test_complex_states_are_real_and_imaginary_parts_side_by_side(trained):
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    states = kann.record(trained, x, layer="cell", inputs=True)
    h, expected = None, []
    with torch.no_grad():
        for now in x.unbind(1):
            h = trained.cell(now, h)
            expected.append(torch.cat([h.real, h.imag], dim=-1))
    np.testing.assert_allclose(states.padded(), torch.stack(expected, dim=1), atol=1e-14)
    np.testing.assert_array_equal(np.asarray(states.inputs).reshape(3, 5, 2), x)


def test_a_trained_linear_unit_has_its_own_eigenvalues(trained):
    x = torch.randn(40, 20, 2, dtype=torch.float64)
    koopman = kann.fit(kann.record(trained, x, layer="cell", inputs=True), driven=True)
    np.testing.assert_allclose(by_modulus(koopman.eigenvalues), with_conjugates(trained), atol=1e-9)


def test_explain_gives_the_true_eigenvalues_of_a_trained_linear_unit(trained):
    x = torch.randn(48, 20, 2, dtype=torch.float64)
    found = kann.explain(trained, x, layer="cell", progress=False)
    assert found.koopman.drive is not None
    np.testing.assert_allclose(by_modulus(found.koopman.eigenvalues), with_conjugates(trained), atol=1e-6)
    assert found.effects is not None  # its complex states were replaced in the running network
    assert max(found.effects.kept["modes"]) > 0.9  # with all pairs kept, nothing is lost


def test_complex_sequences_and_functions_of_the_output_are_recorded_too():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x, dim=-1)

    x = torch.randn(2, 5, 4)
    expected = torch.fft.fft(x, dim=-1)
    expected = torch.cat([expected.real, expected.imag], dim=-1)
    model = nn.Sequential(Spectrum())
    for layer in ("0", lambda output: output):
        np.testing.assert_allclose(kann.record(model, x, layer=layer).padded(), expected, atol=EXACT)


class SelectiveCell(nn.Module):
    """Mamba's recurrence: a state (units, memories) whose decay and input depend on what is read."""

    def __init__(self, units=3, memories=4):
        super().__init__()
        self.log_decay = nn.Parameter(torch.log(torch.arange(1.0, memories + 1)).repeat(units, 1))
        self.to_step, self.to_read = nn.Linear(units, units), nn.Linear(units, memories)
        self.to_give = nn.Linear(units, memories)

    def discretised(self, x):
        """The factor of the state and what is added to it, (..., units, memories), for each step."""
        step = nn.functional.softplus(self.to_step(x))[..., None]
        return torch.exp(-step * self.log_decay.exp()), step * self.to_read(x)[..., None, :] * x[..., None]

    def forward(self, x, h):
        decay, added = self.discretised(x)
        h = decay * h + added
        return (h * self.to_give(x)[:, None]).sum(dim=-1), h


class SelectiveScan(nn.Module):
    """The same over a whole sequence: h_t = Σ_s (decays from s + 1 to t) added_s, by sums of logarithms."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        decay, added = self.cell.discretised(x)
        logs = decay.double().log().cumsum(dim=1)
        weights = (logs[:, :, None] - logs[:, None]).exp()
        past = torch.tril(torch.ones(x.shape[1], x.shape[1]))[None, :, :, None, None]
        return (weights * past * added[:, None].double()).sum(dim=2).to(x.dtype)


class Block(nn.Module):
    """A Mamba block without its convolution: projection, recurrence, gate, projection."""

    def __init__(self, parallel):
        super().__init__()
        self.inward, self.gate, self.outward = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 1)
        self.cell = SelectiveCell()
        self.scan, self.parallel = SelectiveScan(self.cell), parallel

    def forward(self, x):
        read = nn.functional.silu(self.inward(x))
        if self.parallel:
            given = (self.scan(read) * self.cell.to_give(read)[:, :, None]).sum(dim=-1)
        else:
            h, steps = read.new_zeros(len(read), 3, 4), []
            for now in read.unbind(1):
                y, h = self.cell(now, h)
                steps.append(y)
            given = torch.stack(steps, dim=1)
        return self.outward(given * nn.functional.silu(self.gate(x)))[:, -1]


def test_states_of_a_mamba_block_are_those_of_stepwise_decoding():
    torch.manual_seed(0)
    parallel = Block(parallel=True)
    stepwise = Block(parallel=False)
    stepwise.load_state_dict(parallel.state_dict())
    x = torch.randn(5, 12, 2)
    torch.testing.assert_close(parallel(x), stepwise(x), atol=1e-5, rtol=1e-5)
    scanned = kann.record(parallel, x, layer="scan")
    decoded = kann.record(stepwise, x, layer="cell", inputs=True, initial=True)
    assert scanned.dim == decoded.dim == 12
    assert decoded.inputs.shape[1] == 3
    np.testing.assert_allclose(decoded.padded()[:, 1:], scanned.padded(), atol=1e-5)
    np.testing.assert_array_equal(decoded.padded()[:, 0], 0)


def test_a_mamba_cell_is_explained_and_its_state_replaced_live():
    torch.manual_seed(0)
    model = Block(parallel=False)
    x = torch.randn(30, 12, 2)
    states = kann.record(model, x, layer="cell")
    koopman = kann.fit(states, rank=12)
    with torch.no_grad():
        before = model(x)
        with kann.intervene(model, koopman, states, keep=list(range(len(koopman.modes))), layer="cell"):
            torch.testing.assert_close(model(x), before, atol=1e-4, rtol=1e-4)
        with kann.intervene(model, koopman, states, keep=[0], fill="linear", layer="cell"):
            assert (model(x) - before).abs().max() > 1e-3


def test_a_cell_with_three_states_gives_all_of_them():
    """RWKV keeps a numerator, a denominator and the largest exponent so far."""

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.value = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x, state):
            above, below, largest = state
            k, v = self.key(x), self.value(x)
            most = torch.maximum(largest - 0.1, k)
            old, new = torch.exp(largest - 0.1 - most), torch.exp(k - most)
            above, below = old * above + new * v, old * below + new
            return above / below, (above, below, most)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Mixing()

        def forward(self, x):
            state = (torch.zeros(len(x), 2), torch.zeros(len(x), 2), torch.full((len(x), 2), -9.0))
            for now in x.unbind(1):
                y, state = self.cell(now, state)
            return y

    model, x = Reader(), torch.randn(4, 6, 3)
    every = kann.record(model, x, layer="cell", state="hc", inputs=True)
    assert every.dim == 6
    assert every.inputs.shape[1] == 3
    first = kann.record(model, x, layer="cell")
    np.testing.assert_array_equal(first.values, every.values[:, :2])
    last = every.padded()[:, -1]
    np.testing.assert_allclose(last[:, :2] / last[:, 2:4], model(x).detach(), atol=EXACT)


def test_a_block_that_is_applied_several_times_is_no_cell():
    class Shared(nn.Module):
        """As ALBERT: the same block again and again, with the same mask."""

        def __init__(self):
            super().__init__()
            self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0, batch_first=True)

        def forward(self, x):
            mask = torch.zeros(x.shape[:2], dtype=torch.bool)
            for _ in range(3):
                x = self.block(x, src_key_padding_mask=mask)
            return x

    x = torch.randn(2, 5, 4)
    assert len(kann.record(Shared(), x, layer="block")) == 6
    assert kann.record(Shared(), x, layer="block", axis="depth", embedding=True).lengths.tolist() == [4] * 10


def test_a_cell_that_reads_whole_numbers_gives_them_as_inputs():
    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.linear = nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, word, h):
            return torch.tanh(self.linear(h) + self.embed(word))

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Lookup()

        def forward(self, words):
            h = torch.zeros(len(words), 4)
            for now in words.unbind(1):
                h = self.cell(now, h)
            return h

    words = torch.randint(9, (3, 7))
    states = kann.record(Reader(), words, layer="cell", inputs=True)
    np.testing.assert_array_equal(np.asarray(states.inputs).reshape(3, 7), words)
