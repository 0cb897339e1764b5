"""What goes wrong, by name: one error and the typed warnings."""


class KannError(ValueError):
    """Something the user passed cannot be used. The message says what, what was got, and the remedy."""


class NotFiniteError(KannError):
    """States or inputs hold NaN or infinite numbers, such as those of a network that diverged."""


class KannWarning(UserWarning):
    """Base of every warning that kann gives."""


class RankWarning(KannWarning):
    """The data resolve fewer directions than were asked for."""


class FewPairsWarning(KannWarning):
    """There are too few pairs of states for the rank, so that the operator fits noise."""


class DependenceWarning(KannWarning):
    """Inputs contain the state, so that what each of them does cannot be told apart."""


class PaddingWarning(KannWarning):
    """The model itself reads padding, so that what was recorded is not what it computed."""


class PrecisionWarning(KannWarning):
    """Rounding has taken digits of the result; the message says how many are left."""


class ConditionWarning(KannWarning):
    """The eigenvectors are nearly dependent: the operator is defective or close to it."""


class UnfinishedWarning(KannWarning):
    """The store was opened, and its recording was stopped before the end."""
