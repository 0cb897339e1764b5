"""Fixed and slow points of a recurrent network: the baseline that the paper compares with."""

from kann.fixed_points.search import RECIPES, FixedPoints, Recipe, find_fixed_points

__all__ = ["RECIPES", "FixedPoints", "Recipe", "find_fixed_points"]
