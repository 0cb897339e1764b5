"""A fitted operator as a small torch module that runs instead of the network."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kann.backends.arrays import as_numpy
from kann.checks import require_real, short_repr
from kann.errors import KannError
from kann.fitting.bilinear import Bilinear
from kann.fitting.features import FeatureMap
from kann.fitting.koopman import Koopman
from kann.fitting.readout import Readout, require_step
from kann.typing import AnyArray, Float, Int

try:
    import torch
    from array_api_compat import torch as torch_namespace
    from torch import Tensor, nn
except ImportError as error:
    raise ImportError(f"stand-ins need torch ({error}): pip install 'kann[torch]'") from error


def stand_in(
    koopman: Koopman | Bilinear,
    *,
    vocabulary: AnyArray | None = None,
    readout: Readout | None = None,
    dtype: torch.dtype = torch.float32,
) -> "StandIn":
    """Turn a driven or bilinear operator into a torch module, from inputs (n, t, p) to states (n, t, d).

    Parameters
    ----------
    koopman
        A driven operator, or one that its inputs gate.
    vocabulary
        The input vector of each word (w, p), such as the weight of an embedding. The module then takes word numbers
        (n, t). The matrix of a word is computed once, when it is first read.
    readout
        A readout from `kann.stand_ins.fit_readout`. The module then returns the network's outputs instead of states:
        (n, t, o), or (n, o) if the network has one output per sequence. Pass ``lengths=`` with padded inputs then.
    dtype
        The floating-point type of the module's buffers.

    Returns
    -------
    StandIn
        A module without parameters; its weights are buffers.

    Examples
    --------
    >>> import kann
    >>> states = kann.record(nn.GRU(2, 4, batch_first=True), torch.randn(9, 20, 2), inputs=True)
    >>> module = stand_in(kann.fit(states, driven=True, rank=3))
    >>> module(torch.randn(5, 7, 2)).shape
    torch.Size([5, 7, 4])
    >>> logits = torch.as_tensor(states.values) @ torch.ones(4, 1)
    >>> koopman = kann.fit(states, driven=True, rank=3)
    >>> module = stand_in(koopman, readout=kann.stand_ins.fit_readout(koopman, states, logits))
    >>> module(torch.randn(5, 7, 2)).shape
    torch.Size([5, 7, 1])
    """
    require_step(koopman, readout)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise KannError(f"dtype={short_repr(dtype)} is no floating-point type of torch; pass torch.float32")
    return StandIn(koopman, vocabulary=vocabulary, readout=readout, dtype=dtype)


class StandIn(nn.Module):
    """An operator that runs instead of a network. Make it with `kann.stand_in`; its weights are buffers.

    >>> import numpy as np, torch, kann
    >>> rng = np.random.default_rng(0)
    >>> pulses = (rng.random((30, 50, 1)) < 0.2) * rng.choice([-1.0, 1.0], size=(30, 50, 1))
    >>> held = np.ones((30, 50, 1))
    >>> for t in range(1, 50):
    ...     held[:, t] = np.where(pulses[:, t] == 0, held[:, t - 1], pulses[:, t])
    >>> states = kann.States.from_padded(held, inputs=pulses)
    >>> koopman = kann.fit(states, driven="bilinear", features="squares")
    >>> stand_in = kann.stand_in(koopman)
    >>> stand_in(torch.tensor([[[1.0], [0.0], [-1.0]]])).round(decimals=3).flatten().tolist()
    [1.0, 1.0, -1.0]
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the buffers below, which torch describes as tensors or modules."""

    def __init__(
        self, koopman: Koopman | Bilinear, *, vocabulary: AnyArray | None, readout: Readout | None, dtype: torch.dtype
    ):
        super().__init__()
        self.features = _Features(koopman.features, dtype=dtype)
        self.rank, self.dim = koopman.rank, koopman.dim
        self.has_gates = isinstance(koopman, Bilinear)
        self.has_squares = isinstance(koopman, Bilinear) and koopman.squares is not None
        self.has_decoder = koopman.in_coordinates
        self.has_vocabulary = vocabulary is not None
        self.readout = readout
        if readout is not None:
            self.register_buffer("reading", torch.as_tensor(readout.weight, dtype=dtype))
            self.register_buffer("constant", torch.as_tensor(readout.constant, dtype=dtype))
        decoding = {"basis": koopman.basis, "mean": koopman.mean}
        if koopman.decoder is not None:
            decoding["decoder"] = koopman.decoder
        for name, values in (koopman.step_weights | decoding).items():
            self.register_buffer(name, torch.as_tensor(values, dtype=dtype))
        pairs = torch.triu_indices(self.rank, self.rank)
        self.register_buffer("first", pairs[0], persistent=False)
        self.register_buffer("second", pairs[1], persistent=False)
        if vocabulary is not None:
            rows = as_numpy(vocabulary)
            require_real(rows, what="inputs of the vocabulary")
            words = torch.as_tensor(np.asarray(rows, dtype=np.float64)).to(dtype)
            if words.ndim != 2 or words.shape[1] != self.features.inputs or not len(words):
                raise KannError(
                    f"vocabulary has shape {tuple(words.shape)}; pass one row of {self.features.inputs} inputs a word"
                )
            self.register_buffer("vocabulary", words)
            self.register_buffer("table", words.new_zeros(len(words), self.rank + 1, self.rank), persistent=False)
            self.register_buffer("known", torch.zeros(len(words), dtype=torch.bool), persistent=False)
            self.register_load_state_dict_post_hook(_forget_words)

    def __prepare_scriptable__(self) -> "StandIn":
        # torch.jit.script asks for this first; later its compiler stops at the shapes in annotations.
        raise KannError(
            "torch.jit.script cannot compile a stand-in; pass it to torch.export.export or torch.compile, or write one "
            "step with kann.stand_ins.save_onnx"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StandIn":
        """Move or convert all buffers; the matrices of words are computed again in the new type."""
        super()._apply(fn, recurse)
        if self.has_vocabulary:
            self.known.zero_()
        return self

    def forward(
        self, inputs: Tensor, initial: Tensor | None = None, *, lengths: Tensor | None = None
    ) -> Float[Tensor, "n ..."]:
        """Compute the state or output after each input, from the state ``initial`` (n, d), by default zero.

        Of a network with one output per sequence: the output after ``lengths`` (n,) inputs, by default after all.
        """
        reads_last = self.readout is not None and self.readout.per_sequence
        if lengths is not None and not reads_last:
            raise KannError("lengths= is for a readout of one output per sequence; leave it out, and ignore padding")
        z = self.coordinates(inputs, initial)
        if self.readout is None:
            return self.decode(z)
        if reads_last:
            z = z[:, -1] if lengths is None else z[torch.arange(len(z), device=z.device), lengths.to(z.device) - 1]
        return self.read(z)

    def read(self, z: Float[Tensor, "... r"]) -> Float[Tensor, "... o"]:
        """Compute outputs of coordinates by the readout."""
        if self.readout is None:
            raise KannError("this stand-in has no readout; pass readout= to kann.stand_in")
        columns = torch.cat([z, self._products(z)], dim=-1) if self.readout.has_products else z
        return columns @ self.reading + self.constant

    def _products(self, z: Float[Tensor, "... r"]) -> Float[Tensor, "... q"]:
        # Indexing as z[:, first] takes five times as long.
        return z.index_select(-1, self.first) * z.index_select(-1, self.second)

    def decode(self, z: Float[Tensor, "... r"]) -> Float[Tensor, "... d"]:
        """Compute states of coordinates."""
        return z @ (self.decoder if self.has_decoder else self.basis.T) + self.mean

    def coordinates(self, inputs: Tensor, initial: Tensor | None = None) -> Float[Tensor, "n t r"]:
        """Compute the coordinates after each input, from the state ``initial`` (n, d), by default zero.

        ``inputs`` are (n, t, p), or numbers of words (n, t) if there is a vocabulary.
        """
        self._require(inputs)
        if initial is None:
            initial = self.mean.new_zeros(len(inputs), self.dim)
        if not isinstance(initial, Tensor) or initial.shape != (len(inputs), self.dim) or initial.is_complex():
            raise KannError(f"initial={short_repr(initial)} are no states; pass a tensor ({len(inputs)}, {self.dim})")
        z = (initial.to(self.mean) - self.mean) @ self.basis
        if self.has_vocabulary:
            return self._read_words(inputs.long(), z)  # bytes would be taken for masks
        path = []
        for u in inputs.to(self.mean).unbind(1):
            z = self.step(z, u)
            path.append(z)
        return torch.stack(path, dim=1)

    def step(self, z: Float[Tensor, "n r"], u: Float[Tensor, "n p"]) -> Float[Tensor, "n r"]:
        """Compute the coordinates after reading one input."""
        phi = self.features(u)
        after = torch.addmm(self.offset, z, self.matrix) + phi @ self.drive
        if self.has_gates:
            after = after + (phi[:, :, None] * z[:, None, :]).flatten(1) @ self.gates
        return self._bounded(z, after)

    def _bounded(self, z: Tensor, after: Tensor) -> Tensor:
        """Add the term of products of coordinates, and clip to the range that was recorded."""
        if self.has_squares:
            after = after + self._products(z) @ self.squares
        return torch.clamp(after, self.low, self.high)

    def _read_words(self, words: Int[Tensor, "n t"], z: Float[Tensor, "n r"]) -> Float[Tensor, "n t r"]:
        """Step through the words with a table that holds the matrix of each."""
        self._learn(words)
        path, count = [], self.rank
        rows = self.table.flatten(1)  # one gather a step
        for word in words.unbind(1):
            entry = rows.index_select(0, word).view(len(z), count + 1, count)
            after = torch.baddbmm(entry[:, count:], z[:, None, :], entry[:, :count])[:, 0]
            z = self._bounded(z, after)
            path.append(z)
        return torch.stack(path, dim=1)

    @torch.no_grad()
    def _learn(self, words: Tensor) -> None:
        """Add words that were not read before to the table: their matrices, and below each what the word adds."""
        is_read = torch.zeros_like(self.known)
        is_read[words.flatten()] = True
        new = torch.nonzero(is_read & ~self.known)[:, 0]
        if not len(new):
            return
        phi = self.features(self.vocabulary[new])
        matrices = self.matrix.expand(len(new), -1, -1)
        if self.has_gates:
            matrices = matrices + (phi @ self.gates.view(phi.shape[1], -1)).view_as(matrices)
        pushes = phi @ self.drive + self.offset
        self.table[new] = torch.cat([matrices, pushes[:, None]], dim=1)
        self.known[new] = True

    def _require(self, inputs: Any) -> None:
        """Raise if the inputs have another shape or kind."""
        fits = isinstance(inputs, Tensor) and inputs.ndim == (2 if self.has_vocabulary else 3) and inputs.numel() > 0
        if fits and self.has_vocabulary:
            is_whole = not (inputs.is_floating_point() or inputs.is_complex() or inputs.dtype == torch.bool)
            fits = is_whole and int(inputs.max()) < len(self.vocabulary) and int(inputs.min()) >= 0
        elif fits:
            fits = inputs.shape[2] == self.features.inputs
        if not fits:
            what = "numbers of words (n, t)" if self.has_vocabulary else f"inputs (n, t, {self.features.inputs})"
            raise KannError(f"the stand-in reads {what}; got {short_repr(inputs)}; pass a tensor of these")


def _forget_words(module: StandIn, _: Any) -> None:
    """Forget the matrices of words, which were made of other weights."""
    module.known.zero_()


class _Features(nn.Module):
    """The features φ of an operator, from inputs (n, p) to (n, k), with their arrays as buffers."""

    def __init__(self, features: FeatureMap, *, dtype: torch.dtype):
        super().__init__()
        self.map, self.inputs = features, features.inputs
        for name, values in features.arrays.items():
            self.register_buffer(name, torch.as_tensor(values, dtype=dtype), persistent=name != "numbers")

    def forward(self, u: Float[Tensor, "n p"]) -> Float[Tensor, "n k"]:
        """Compute the features of inputs."""
        if self.map.kind == "function":  # a function of numpy arrays, for all that is known
            return torch.as_tensor(self.map.of(u.double().cpu().numpy())).to(u)
        return self.map.formula(torch_namespace, u, dict(self.named_buffers()))
