"""The contributions of the data's rows to a step: features, derivatives and their sums."""
