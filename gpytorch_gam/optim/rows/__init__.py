"""What the rows of the data contribute to a step: features, derivatives and their sums."""
