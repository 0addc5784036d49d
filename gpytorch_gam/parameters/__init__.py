"""Hyperparameters: their constraint, initial values, coordinates for optimisers, and the structure they belong to."""
