"""Hyperparameters: their constraint, where they start, how optimisers see them, and what their values belong to."""
