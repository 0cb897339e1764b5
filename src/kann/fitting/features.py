"""Functions φ of what a network reads, which gate an operator: z' ≈ z C + φ(u) D + c + Σ φ_k(u) z E_k.

A class such as `Fourier` describes functions. Fitted to the inputs of recorded states it becomes a
`FeatureMap`, which computes them.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from kann.backends.arrays import as_numpy, as_operand, float64_copy, gram, indices_for, is_dask, namespace, to_device_of
from kann.checks import call_of_user, require_number, require_whole_number, short_repr
from kann.data.moments import refuse_not_finite
from kann.data.reduction import Additive, Block, SumOverBlocks, accumulate
from kann.data.serialization import Stored
from kann.data.states import States
from kann.errors import KannError
from kann.fitting.basis import signs_of
from kann.typing import AnyArray, Array, Float, Int


def pair_count(m: int) -> int:
    """Return how many products of two of m columns there are, squares included."""
    return m * (m + 1) // 2


def pair_index(m: int) -> Int[Array, "m m"]:
    """Return the row of the product of columns i and j in `pair_products`.

    >>> pair_index(3).tolist()
    [[0, 1, 2], [1, 3, 4], [2, 4, 5]]
    """
    first, second = np.triu_indices(m)
    index = np.empty((m, m), dtype=np.int64)
    index[first, second] = index[second, first] = np.arange(len(first))
    return index


def triple_index(m: int) -> Int[Array, "m m m"]:
    """Return the row of the product of columns i, j and l in the rows that `triple_panels` yields."""
    chosen = np.array(list(itertools.combinations_with_replacement(range(m), 3)))
    index = np.empty((m, m, m), dtype=np.int64)
    for order in itertools.permutations(range(3)):
        index[tuple(chosen[:, order].T)] = np.arange(len(chosen))
    return index


def pair_panels(rows: Float[AnyArray, "m n"]) -> Iterator[Float[AnyArray, "q n"]]:
    """Return the products of each row with itself and all later ones, in the order of `pair_index`.

    They come one row at a time: products of all rows at once would not fit a cache.
    """
    return (rows[i:] * rows[i] for i in range(len(rows)))


def pair_products(rows: Float[AnyArray, "m n"]) -> Float[AnyArray, "q n"]:
    """Return the products of all pairs i ≤ j of rows, in the order of `pair_index`."""
    return namespace(rows).concat(list(pair_panels(rows)))


def triple_panels(rows: Float[AnyArray, "m n"], pairs: Float[AnyArray, "q n"]) -> Iterator[Float[AnyArray, "t n"]]:
    """Yield the products of each row i with all pairs i ≤ j ≤ l, in the order of `triple_index`."""
    m = len(rows)
    return (pairs[-pair_count(m - i) :] * rows[i] for i in range(m))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputSums(Additive):
    """Sums over the inputs of all pairs of states. They add up over blocks."""

    pairs: int
    """How many inputs led from one state to the next."""
    total: Float[Array, " p"]
    """Σ u"""
    products: Float[Array, "p p"]
    """UᵀU"""
    largest: float
    """The largest of all numbers."""
    are_whole: bool
    """Whether all of them are whole numbers of at least 0."""
    sample: AnyArray
    """No rows of inputs, of their kind and on their device."""
    ADDED_BY: ClassVar = {"largest": max, "are_whole": min, "sample": lambda first, _: first}

    @property
    def mean(self) -> Float[Array, " p"]:
        """The mean input."""
        return self.total / self.pairs

    @property
    def covariance(self) -> Float[Array, "p p"]:
        """Covariances of the inputs."""
        return self.products / self.pairs - np.outer(self.mean, self.mean)


def input_sums(states: States) -> InputSums:
    """Return the sums over all states but the first of each sequence, which no pair leads to."""
    found = accumulate(states, partial(SumOverBlocks, _of_block), inputs=True, what="inputs")
    if not np.isfinite(found.products).all():
        refuse_not_finite(states, inputs=True)
    inputs: Any = states.inputs
    if is_dask(inputs):
        return found
    return replace(found, sample=float64_copy(inputs[:0]))  # every rank has its device


def read_in_pairs(block: Block) -> AnyArray:
    """Return the inputs (m, p) of a block that led from a state to the next, also from one in an earlier block."""
    is_first = np.zeros(block.values.shape[0], dtype=bool)
    is_first[block.offsets[block.steps == 0]] = True
    (rows,) = indices_for(block.inputs, np.flatnonzero(~is_first))
    return block.inputs[rows]  # pyright: ignore[reportOptionalSubscript]


def _of_block(block: Block) -> InputSums:
    inputs = read_in_pairs(block)
    xp, largest, are_whole = namespace(inputs), -np.inf, True
    if len(inputs):
        largest = float(xp.max(inputs))
        are_whole = bool(xp.all((inputs >= 0) & (inputs == xp.round(inputs))))
    return InputSums(
        pairs=len(inputs),
        total=as_numpy(inputs.sum(0)),
        products=as_numpy(gram(inputs)),
        largest=largest,
        are_whole=are_whole,
        sample=inputs[:0] + 0,
    )


SMALLEST_SCALE = 1e-12
"""Standard deviations below this fraction of the largest one are rounding: such an input is constant."""


KINDS = ("inputs", "squares", "pca", "fourier", "tokens", "function", "products")
"""The kinds of features, in the order of the numbers under which version 1 of the files saved them."""

ARRAYS = {"pca": ("centre", "matrix"), "fourier": ("centre", "matrix", "phase")}
"""The arrays of those kinds that have any."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FeatureMap(Stored):
    """``count`` functions φ of inputs (..., p), with all numbers that they need."""

    kind: str
    """One of `KINDS`."""
    inputs: int
    """The number of inputs p; of tokens one, the number of the token."""
    count: int
    """The number of functions k."""
    centre: Float[Array, " p"] | None = None
    """Subtracted from the inputs before they are projected."""
    matrix: Float[Array, "p k"] | None = None
    """Principal components, or random frequencies."""
    phase: Float[Array, " k"] | None = None
    function: Any = None
    """The user's function, from inputs (n, p) to (n, k)."""

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays that `formula` needs, by name."""
        if self.kind == "tokens":
            return {"numbers": np.arange(self.count, dtype=np.float64)}
        if self.kind == "products":
            first, second = (np.eye(self.inputs)[:, chosen] for chosen in np.triu_indices(self.inputs))
            return {"first": first, "second": second}
        arrays: dict[str, Any] = {"centre": self.centre, "weight": self.matrix, "phase": self.phase}
        return {name: array for name, array in arrays.items() if array is not None}

    def formula(self, xp: Any, inputs: Any, arrays: Mapping[str, Any]) -> Any:
        """Compute φ(u) from the operations of an array namespace: numpy, torch, or one that writes an ONNX graph.

        φ(u) is u, (u, u²), (u, uᵢ uⱼ for i ≤ j), (u − centre) P, √2 cos((u − centre) W + phase), a row with a single 1
        for each token, or what the user's function gives.
        """
        if self.kind == "function":
            return self._call(inputs)
        if self.kind == "tokens":
            return xp.astype(inputs == arrays["numbers"], inputs.dtype)
        if self.kind == "squares":
            return xp.concat([inputs, inputs * inputs], axis=-1)
        if self.kind == "products":
            return xp.concat([inputs, (inputs @ arrays["first"]) * (inputs @ arrays["second"])], axis=-1)
        projected = inputs if self.kind == "inputs" else (inputs - arrays["centre"]) @ arrays["weight"]
        return 2**0.5 * xp.cos(projected + arrays["phase"]) if self.kind == "fourier" else projected

    def _call(self, inputs: AnyArray) -> AnyArray:
        rows = inputs.reshape(-1, inputs.shape[-1])
        found = call_features(self.function, rows)
        if found.shape[1] != self.count:
            raise KannError(
                f"features(inputs) gave {found.shape[1]} columns for {len(rows)} inputs and {self.count} for others; "
                "return the same number for all inputs"
            )
        return found.reshape(*inputs.shape[:-1], self.count)

    def of(self, inputs: AnyArray) -> Float[AnyArray, "... k"]:
        """Compute φ(u) for float64 inputs (..., p), on the device where these are."""
        arrays = {name: to_device_of(inputs, values) for name, values in self.arrays.items()}
        return self.formula(namespace(inputs), inputs, arrays)

    def of_nothing(self) -> Float[Array, " k"]:
        """Compute φ for an input of zeros. Raise for tokens, of which one is read in every step."""
        if self.kind == "tokens":
            raise KannError(
                "a network that reads tokens reads one in every step, so there is no operator without; pass a token, "
                "koopman.at([3]), or koopman.at('mean') for the mean over what was read"
            )
        return self.of(np.zeros((1, self.inputs)))[0]

    def require_known(self, inputs: AnyArray) -> None:
        """Raise for numbers that no token has; other features take any input."""
        if self.kind != "tokens":
            return
        numbers = as_numpy(inputs)
        unknown = (numbers < 0) | (numbers >= self.count) | (numbers != np.floor(numbers))
        if unknown.any():
            raise KannError(
                f"{short_repr(numbers[unknown][0].item())} is no token; the operator knows the numbers 0 to "
                f"{self.count - 1}; pass these"
            )

    def _content(self) -> dict[str, Any]:
        return Stored._content(self) | {"function": None}  # no file can hold a function

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> "FeatureMap":
        if content["kind"] == "function":
            content = content | {"function": absent_function}
        return FeatureMap(**content)

    def _check(self) -> None:
        sizes = {
            "inputs": self.count == self.inputs,
            "squares": self.count == 2 * self.inputs,
            "products": self.count == self.inputs + pair_count(self.inputs),
            "tokens": self.inputs == 1,
        }
        arrays = [name for name in ARRAYS["fourier"] if getattr(self, name) is not None]
        if self.kind not in KINDS or arrays != list(ARRAYS.get(self.kind, ())) or not sizes.get(self.kind, True):
            raise ValueError(f"{short_repr(self.kind)} features do not have {arrays}, {self.inputs} and {self.count}")
        if self.matrix is not None and self.matrix.shape != (self.inputs, self.count):
            raise ValueError(f"its features map {self.matrix.shape}, not {self.inputs} inputs to {self.count}")


def absent_function(inputs: AnyArray) -> AnyArray:
    """Raise: the function was not saved. It is in the place of one until the user passes it."""
    raise KannError("no file can hold features that are a function; pass it: kann.Bilinear.load(path, features=...)")


def call_features(function: Callable[[AnyArray], AnyArray], rows: AnyArray) -> Float[AnyArray, "n k"]:
    """Call the user's function with inputs (n, p); return finite numbers (n, k) on the device of the inputs."""
    remedy = "pass a function from inputs (n, p) to (n, k)"
    found = call_of_user(function, as_operand(rows), what="features", on=f"inputs {tuple(rows.shape)}", remedy=remedy)
    if not hasattr(found, "ndim") or found.ndim != 2 or found.shape[0] != len(rows) or not found.shape[1]:
        raise KannError(f"features(inputs) gave {short_repr(found)} for inputs {tuple(rows.shape)}; {remedy}")
    found = as_operand(found)
    if isinstance(found, np.ndarray):
        found = to_device_of(rows, found.astype(np.float64))
    xp = namespace(found)
    if not bool(xp.all(xp.isfinite(found))):
        raise KannError("features(inputs) gave NaN or infinite numbers; return finite ones for all inputs recorded")
    return found


# Descriptions that users pass


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs themselves: φ(u) = u.

    >>> import kann
    >>> kann.features.Inputs()
    Inputs()
    """

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        return FeatureMap(kind="inputs", inputs=len(sums.total), count=len(sums.total))


@dataclass(frozen=True, slots=True)
class Squares:
    """Inputs and their squares, which a latch needs: a pulse of either sign clears it.

    >>> import kann
    >>> kann.features.Squares()
    Squares()
    """

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        return FeatureMap(kind="squares", inputs=len(sums.total), count=2 * len(sums.total))


@dataclass(frozen=True, slots=True)
class Products:
    """Inputs and the products of all pairs of them, squares included.

    They describe inputs that decide what others do, such as a flag that loads a value or a cue that selects a channel.

    >>> import kann
    >>> kann.features.Products()
    Products()
    """

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        p = len(sums.total)
        return FeatureMap(kind="products", inputs=p, count=p + pair_count(p))


@dataclass(frozen=True, slots=True)
class Components:
    """The leading principal components of the inputs, ``count`` of them.

    >>> Components(128)
    Components(count=128)
    """

    count: int = 64

    def __post_init__(self) -> None:
        require_whole_number(self.count, "count", too_small="are no components")

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        if self.count > len(sums.total):
            raise KannError(f"{len(sums.total)} inputs have no {self.count} components; pass count<={len(sums.total)}")
        _, vectors = np.linalg.eigh(sums.covariance)
        leading = vectors[:, ::-1][:, : self.count]
        return FeatureMap(
            kind="pca", inputs=len(leading), count=self.count, centre=sums.mean, matrix=leading * signs_of(leading)
        )


@dataclass(frozen=True, slots=True)
class Fourier:
    """Random Fourier features of the inputs, ``count`` of them: any smooth function of an input is a sum of many.

    ``width`` is the distance over which functions vary, 1 for the typical distance of two inputs.

    >>> import kann
    >>> kann.features.Fourier(256, seed=1)
    Fourier(count=256, seed=1, width=1.0)
    """

    count: int = 256
    seed: int = 0
    width: float = 1.0

    def __post_init__(self) -> None:
        require_whole_number(self.count, "count", too_small="are no features")
        require_whole_number(self.seed, "seed", least=0, too_small="is negative")
        if not require_number(self.width, "width", remedy="pass width>0") > 0:
            raise KannError(f"width={self.width} is no distance; pass width>0")

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        rng, p = np.random.default_rng(self.seed), len(sums.total)
        deviation = np.sqrt(np.maximum(np.diag(sums.covariance), 0.0))
        is_constant = deviation <= SMALLEST_SCALE * max(deviation.max(), np.finfo(float).tiny)
        # Two inputs of unit variance are about √(2p) apart.
        scale = np.where(is_constant, np.inf, deviation) * (2 * p) ** 0.5 * self.width
        return FeatureMap(
            kind="fourier",
            inputs=p,
            count=self.count,
            centre=sums.mean,
            matrix=rng.normal(size=(p, self.count)) * 2**0.5 / scale[:, None],
            phase=rng.uniform(0, 2 * np.pi, size=self.count),
        )


@dataclass(frozen=True, slots=True)
class Tokens:
    """One column for each token of a small vocabulary; inputs are then (N, 1), the number of the token.

    Without ``count`` the largest number that was read decides how many.

    >>> import kann
    >>> kann.features.Tokens(50)
    Tokens(count=50)
    """

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            require_whole_number(self.count, "count", too_small="are no tokens")

    def fitted(self, sums: InputSums) -> FeatureMap:
        """Return the map for inputs with these sums."""
        if len(sums.total) != 1 or not sums.are_whole:
            raise KannError(
                f"features='tokens' needs one whole number of at least 0 for each state, the token that was read; got "
                f"{len(sums.total)} inputs that are no such numbers; pass States with token numbers (N, 1) as inputs"
            )
        count = int(sums.largest) + 1
        if self.count is not None and self.count < count:
            raise KannError(f"token {count - 1} was read, and count={self.count}; pass count>={count}")
        return FeatureMap(kind="tokens", inputs=1, count=self.count or count)


Spec = Inputs | Squares | Products | Components | Fourier | Tokens
"""Types of ``features``, besides names and functions."""

NAMED = {
    "inputs": Inputs,
    "squares": Squares,
    "products": Products,
    "pca": Components,
    "fourier": Fourier,
    "tokens": Tokens,
}
"""The names of features, each with its usual count."""


def parse_features(features: Any) -> Spec | Callable[[AnyArray], AnyArray]:
    """Read ``features``: a name, one of the classes above, a function, or None for the inputs."""
    if features is None:
        return Inputs()
    if isinstance(features, str) and features in NAMED:
        return NAMED[features]()
    if isinstance(features, Spec) or (callable(features) and not isinstance(features, type)):
        return features
    raise KannError(
        f"features={short_repr(features)} is unknown; pass {', '.join(map(repr, NAMED))}, one of kann.features such as "
        "kann.features.Fourier(256), or a function from inputs (n, p) to (n, k)"
    )


def fit_features(features: Spec | Callable[[AnyArray], AnyArray], sums: InputSums) -> FeatureMap:
    """Return the features as a map of inputs with these sums."""
    if isinstance(features, Spec):
        return features.fitted(sums)
    rows = to_device_of(sums.sample, np.stack([np.zeros_like(sums.mean), sums.mean]))
    count = call_features(features, rows).shape[1]
    return FeatureMap(kind="function", inputs=len(sums.mean), count=count, function=features)
