"""Time zones of columns of dates by names that mean the same wherever a file is read."""

from __future__ import annotations

import re
import zoneinfo
from datetime import timedelta, timezone, tzinfo

import pandas as pd

# How dateutil shows a zone of the database of time zones.
_DATABASE_FILE = re.compile(r"tzfile\('(?:.*zoneinfo/)?([^']+)'\)")


def has_zone(values: pd.Series) -> bool:
    """
    Whether a column holds dates with a time zone.

    :param values: The column.
    """
    return isinstance(values.dtype, pd.DatetimeTZDtype)


def zone_of(values: pd.Series) -> str:
    """
    The name of the time zone of a column: its key in the database of time zones, or ``UTC+02:00`` for what has the same
    offset always; empty without a zone.

    :param values: The column.
    :raises ValueError: If its time zone has no such name, so that its clock could not be told again.
    """
    if not isinstance(values.dtype, pd.DatetimeTZDtype):
        return ""
    zone = values.dtype.tz
    found = _key(zone) or _fixed_offset(zone)
    if found is None:
        raise ValueError(
            f"column {values.name!r} has dates in the time zone {zone!r}, which has no name: take "
            f"X[{values.name!r}].dt.tz_convert('America/New_York'), or the zone by whose clock they are"
        )
    return found


def _key(zone: tzinfo) -> str | None:
    """The key of a zone of zoneinfo, pytz or dateutil in the database."""
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if key is None:
        file = _DATABASE_FILE.fullmatch(repr(zone))
        key = None if file is None else file[1]
    if key is None:
        return None
    try:
        return zoneinfo.ZoneInfo(key).key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _fixed_offset(zone: tzinfo) -> str | None:
    """The name of an offset of whole minutes, whatever the zone calls it."""
    offset = zone.utcoffset(None)
    if offset is None or offset % timedelta(minutes=1):
        return None
    return str(timezone(offset))
