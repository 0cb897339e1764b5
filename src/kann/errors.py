"""One error and the typed warnings."""


class KannError(ValueError):
    """Something the user passed cannot be used. The message names the problem, what was passed, and the remedy.

    >>> import numpy as np, kann
    >>> try:
    ...     kann.fit(np.eye(9).reshape(3, 3, 9), rank=12)
    ... except kann.KannError as error:
    ...     print(error)
    rank=12 exceeds the 9 hidden units recorded; pass rank<=9 or rank=None
    """


class NotFiniteError(KannError):
    """States or inputs hold NaN or infinite numbers, such as those of a network that diverged.

    >>> import numpy as np, kann
    >>> try:
    ...     kann.fit(np.full((4, 5, 3), np.nan))
    ... except kann.errors.NotFiniteError as error:
    ...     print(str(error).split(";")[0])
    states hold NaN at sequence 0, step 0, unit 0
    """


class KannWarning(UserWarning):
    """Base of every warning that kann gives.

    >>> import warnings
    >>> import numpy as np, kann
    >>> noise = np.random.default_rng(0).normal(size=(2, 4, 6))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", kann.errors.KannWarning)
    ...     koopman = kann.fit(noise)
    """


class RankWarning(KannWarning):
    """The data resolve fewer directions than were asked for.

    >>> import warnings
    >>> import numpy as np, kann
    >>> same = np.random.default_rng(0).normal(size=(9, 9, 1)).repeat(3, axis=2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     koopman = kann.fit(same, rank=3)
    >>> print(caught[0].category.__name__)
    RankWarning
    """


class FewPairsWarning(KannWarning):
    """There are too few pairs of states for the rank, so that the operator fits noise.

    >>> import warnings
    >>> import numpy as np, kann
    >>> noise = np.random.default_rng(0).normal(size=(2, 4, 6))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     koopman = kann.fit(noise)
    >>> print(caught[0].category.__name__)
    FewPairsWarning
    """


class DependenceWarning(KannWarning):
    """Inputs contain the state, so that the effects of states and inputs cannot be separated.

    >>> import warnings
    >>> import numpy as np, kann
    >>> h = np.random.default_rng(0).normal(size=(9, 20, 2))
    >>> states = kann.States.from_padded(h[:, 1:], inputs=h[:, :-1])  # what is read is the state before
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     koopman = kann.fit(states, driven=True)
    >>> print(caught[0].category.__name__)
    DependenceWarning
    """


class PaddingWarning(KannWarning):
    """The model itself reads padding, so that the recorded states differ from those that it computes.

    >>> import warnings
    >>> import torch, kann
    >>> from torch import nn
    >>> both, words = nn.GRU(2, 4, bidirectional=True, batch_first=True), [torch.randn(n, 2) for n in (3, 5)]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     states = kann.recording.record_layers(both, words)
    >>> print(caught[0].category.__name__)
    PaddingWarning
    """


class SequenceWarning(KannWarning):
    """It cannot be seen which sequence or step a recorded state belongs to; the message names the assumption.

    >>> import warnings
    >>> import torch, kann
    >>> class Mixed(torch.nn.Module):  # each sequence also reads the one before it
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.rnn = torch.nn.GRU(3, 4, batch_first=True)
    ...     def forward(self, x):
    ...         return self.rnn(x + x.roll(1, dims=0))[0]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     states = kann.record(Mixed(), torch.randn(6, 5, 3))
    >>> print(caught[0].category.__name__)
    SequenceWarning
    """


class PrecisionWarning(KannWarning):
    """Rounding has taken digits of the result; the message gives the number of digits left.

    >>> import warnings
    >>> import numpy as np, kann
    >>> far = np.random.default_rng(0).normal(size=(9, 20, 2)) + 1e6
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     koopman = kann.fit(kann.Moments().update(far))
    >>> print(caught[0].category.__name__)
    PrecisionWarning
    """


class ConditionWarning(KannWarning):
    """The eigenvectors are nearly dependent: the operator is defective or close to it.

    >>> import warnings
    >>> import numpy as np, kann
    >>> h = np.random.default_rng(0).normal(size=(9, 20, 2))
    >>> for t in range(1, 20):
    ...     h[:, t] = h[:, t - 1] @ [[0.9, 1.0], [0.0, 0.9 + 1e-9]]  # two equal eigenvalues, one eigenvector
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     koopman = kann.fit(h)
    >>> print(caught[0].category.__name__)
    ConditionWarning
    """


class UnfinishedWarning(KannWarning):
    """The store was opened, and its recording was stopped before the end.

    >>> import pathlib, tempfile, warnings
    >>> import torch, kann
    >>> def batches():
    ...     yield torch.randn(2, 5, 3)
    ...     raise KeyboardInterrupt
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "states.zarr"
    >>> try:
    ...     kann.record(torch.nn.GRU(3, 4, batch_first=True), batches(), into=path)
    ... except KeyboardInterrupt:
    ...     pass
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     states = kann.States.open(path)
    >>> print(caught[0].category.__name__)
    UnfinishedWarning
    >>> folder.cleanup()
    """
