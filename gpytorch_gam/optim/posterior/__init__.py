"""The structured posterior as an optimiser sees it: reading, transporting, refitting and writing it."""
