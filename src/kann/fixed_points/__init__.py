"""Fixed and slow points of a recurrent network: with which modes can be compared."""

try:
    from kann.fixed_points._search import Recipe, find_fixed_points
    from kann.fixed_points.result import FixedPoints
except ImportError as error:
    raise ImportError(f"fixed points need torch ({error}): pip install 'kann[torch]'") from error

__all__ = ["FixedPoints", "Recipe", "find_fixed_points"]
