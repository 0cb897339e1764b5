"""What a network learned, in one call, and the page that shows it."""

try:
    from kann.explaining.explanation import Explanation
    from kann.explaining.one_call import explain
except ImportError as error:
    raise ImportError(f"explanations need torch ({error}): pip install 'kann[torch]'") from error

__all__ = ["Explanation", "explain"]
