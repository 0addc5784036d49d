"""The components of terms one by one."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from .fitted import Fitted
from .term_evidence import Evidence
from .term_scales import lengthscale, prior_deviation


def component_table(fitted: Fitted, evidence: Mapping[str, Evidence]) -> pd.DataFrame:
    """
    What a summary says of terms, of each component of those that have several: curves of levels, a line and a curve,
    and the effects of the columns of ``te`` and their interaction.

    :param fitted: The fitted model.
    :param evidence: That of each component.
    """
    found = [(part, name) for part in fitted.parts if len(part.components) > 1 for name in part.components]
    rows = [
        {
            "edf": evidence[name].freedom,
            "prior_sd": prior_deviation(fitted, part, [name]),
            "lengthscale": lengthscale(fitted, part, [name] if evidence[name].is_on else []),
            "p": evidence[name].probability,
        }
        for part, name in found
    ]
    labels = [(part.label, part.component(name)) for part, name in found]
    index = pd.MultiIndex.from_tuples(labels, names=["term", "component"])
    return pd.DataFrame(rows, index=index, columns=["edf", "prior_sd", "lengthscale", "p"])
