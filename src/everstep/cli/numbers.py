"""Numbers in options: refused in our own words, with what was received, whatever version of the parser is installed."""

import math

from everstep.errors import UsageError


def whole_number(option: str, text: str, least: int, most: int) -> int:
    """Returns the number that an option was given.

    Raises:
      UsageError: It is none, or too small, or too large.
    """
    number = int(text) if text.strip().removeprefix("-").isdecimal() else None
    if number is None or not least <= number <= most:
        raise UsageError(f"{option}: received {text!r}, expected a whole number from {least} to {most}")
    return number


def real_number(option: str, text: str, above: float, below: float) -> float:
    """Returns the number that an option was given.

    Raises:
      UsageError: It is none, or not between the two.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not above < number < below:
        raise UsageError(f"{option}: received {text!r}, expected a number above {above:g} and below {below:g}")
    return number
