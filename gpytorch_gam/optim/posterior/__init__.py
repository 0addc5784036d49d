"""The structured posterior as an optimiser sees it: how it is read, moved, refitted and written."""
