"""The formats of strings that are enforced, as regular expressions where llguidance's own are too wide."""

from __future__ import annotations

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"

# llguidance takes what others refuse: 29 February of any year, leap seconds, hosts of any length.
PATTERN_OF_FORMAT = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": f"^{_LABEL}(?:[.]{_LABEL}){{0,3}}$",
    "email": f"^[A-Za-z0-9_+-]{{1,20}}(?:[.][A-Za-z0-9_+-]{{1,20}}){{0,2}}@(?:{_LABEL}[.]){{1,3}}[A-Za-z]{{2,24}}$",
}
FORMATS_OF_LLGUIDANCE = ("duration", "ipv4", "ipv6", "uri", "uuid")
FORMATS = sorted([*PATTERN_OF_FORMAT, *FORMATS_OF_LLGUIDANCE])
