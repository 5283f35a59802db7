"""The demonstration behind ``make demo``: a zoo of small vision transformers, measured and judged."""

from spiritlevel.demo.data import SHIFTS, digits
from spiritlevel.demo.model import small_vit, train
from spiritlevel.demo.recipes import RECIPES, Recipe
from spiritlevel.demo.run import run_demo
from spiritlevel.demo.training import Settings, train_to_level

__all__ = ["RECIPES", "SHIFTS", "Recipe", "Settings", "digits", "run_demo", "small_vit", "train", "train_to_level"]
