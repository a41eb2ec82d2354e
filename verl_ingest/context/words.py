"""Numbers, ranks and durations as people read them."""

from collections.abc import Iterable, Sequence

DASH = "\u2013"
GIST = 160  # characters
MOST_Z = 99


def number(value: float | None, unit: str = "") -> str:
    """Write a number with three digits that count, and its unit."""
    if value is None:
        return DASH
    size = abs(value)
    if size == 0:
        text = "0"
    elif size >= 1e9 or size < 1e-3:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"
    return f"{text} {unit}" if unit else text


def sigmas(z: float) -> str:
    """Write the size of a z."""
    return f"{abs(z):.1f} sigma" if abs(z) < 100 else "over 100 sigma"


def deviation(z: float | None) -> str:
    """Write a z with its sign, a dash where there is none."""
    if z is None:
        return DASH
    return f"{z:+.1f}" if abs(z) <= MOST_Z else f"{'>' if z > 0 else '<-'}{MOST_Z}"


def counted(count: int, noun: str) -> str:
    """Write `1 record`, `2 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ranks(numbers: Iterable[int]) -> str:
    """Write one rank as `rank 3`, several as `ranks 0, 2, 5`, neighbours as a range."""
    parts = ranges(sorted(numbers))
    word = "rank" if len(parts) == 1 and DASH not in parts[0] else "ranks"
    return f"{word} {', '.join(parts)}"


def pids(numbers: Sequence[int]) -> str:
    """Write one process id as `pid 4103`, several as `pids 4103, 4105`, many as `8 processes`; nothing for none."""
    if len(numbers) > 3:
        return f"{len(numbers)} processes"
    return f"pid{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}" if numbers else ""


def ranges(numbers: Sequence[int]) -> list[str]:
    """Fold sorted whole numbers into ranges: 0, 1, 2, 5 gives two."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return [str(low) if low == high else f"{low}{DASH}{high}" for low, high in runs]


def listed(words: Sequence[str]) -> str:
    """Write `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def several(words: Sequence[str]) -> str:
    """Write a list as `listed` does; of more than three, the first three and how many more there are."""
    return listed(words if len(words) <= 3 else [*words[:3], f"{len(words) - 3:,} more"])


def duration(seconds: float) -> str:
    """Write a duration in its two largest units; a short one with two digits that count."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for size, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{seconds:.0f} s"


def first_line(text: str, width: int = 200) -> str:
    """Return the first line of a text, cut at `width` characters."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= width else f"{line[: width - 1]}…"


def gist(text: str) -> str:
    """Return the first line of a text; a long one only as far as its sentences fit."""
    line = text.strip().split("\n", 1)[0]
    if len(line) <= GIST:
        return line
    end = line.rfind(". ", 0, GIST)
    return line[:end] if end > 0 else first_line(line, GIST)
