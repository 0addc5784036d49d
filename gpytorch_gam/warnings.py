"""Categories of this package's warnings."""


class RankWarning(UserWarning):
    """A low-rank posterior has too few columns for what the data determine."""


class CurvatureWarning(UserWarning):
    """A loss asks for more variance everywhere, as one of the wrong sign does."""


class TrainingLoopWarning(UserWarning):
    """The order of a training loop, or what its optimisers hold, spoils the training."""


class ProjectionWarning(UserWarning):
    """The fastest way to compute projections does not work on a device."""


class InducingPointsWarning(UserWarning):
    """Components have fewer inducing points than their effects need."""


class ConvergenceWarning(UserWarning):
    """A fit ends short of its optimum."""


class DiscretizationWarning(UserWarning):
    """A component varies between values that a fit on discretised inputs takes for one."""


class ConstantColumnWarning(UserWarning):
    """A column has the same value in all rows, so that a term of it has no effect."""


class MissingInputsWarning(UserWarning):
    """A column is missing in many rows of a fit, which takes the effect that it has there for noise."""


class SampleWeightWarning(UserWarning):
    """Weights of rows make these count as more or fewer observations than there are."""


class ColumnKindWarning(UserWarning):
    """A column may hold something else than its type says."""


class MissingLevelsWarning(UserWarning):
    """Curves by the levels of a column come without a term of these levels themselves."""


class OverfittingWarning(UserWarning):
    """A fit trains more parameters than the data can bear, without integrating over them."""


class InputRangeWarning(UserWarning):
    """Inputs lie far outside of those that a model was trained with."""


class DependentColumnsWarning(UserWarning):
    """Columns depend on each other, so that the variance of their effects cannot be divided among them."""


class MissingInteractionsWarning(UserWarning):
    """Indices of sensitivity are those of a model from which interactions are, or may be, missing."""
