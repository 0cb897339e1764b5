"""scikit-learn, which only this experiment needs."""


def require_scikit_learn() -> None:
    """Raise an error that names the extra to install if scikit-learn is missing."""
    try:
        import sklearn.decomposition
        import sklearn.metrics  # noqa: F401 - only to see that they are there
    except ImportError as error:
        raise ImportError("the ECG experiment needs scikit-learn: pip install -e experiments") from error
