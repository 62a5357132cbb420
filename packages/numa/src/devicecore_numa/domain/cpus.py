"""Sets of CPUs as integers with one bit per CPU, and as the lists that Linux writes: `0-3,8`.

Law: `parse_cpus(cpu_list(cpus)) == cpus`.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from devicecore_numa.domain.errors import InvalidCpuListError

Cpus = int
"""A set of CPUs: bit n is set if the set contains CPU n. The union of two sets, even of 512 CPUs, takes one operation.
"""

MAX_CPU = 65_535
"""The largest CPU number that a list may contain.

Go reads any number, but a higher CPU number is a mistake or an attack.
"""


def cpu_set(ids: Iterable[int]) -> Cpus:
    """Return the set of the CPUs with these numbers."""
    cpus = 0
    for cpu in ids:
        cpus |= 1 << cpu
    return cpus


def cpu_ids(cpus: Cpus) -> Iterator[int]:
    """Yield the numbers of the CPUs in ascending order."""
    while cpus:
        lowest = cpus & -cpus
        yield lowest.bit_length() - 1
        cpus ^= lowest


@lru_cache(4096)  # cached, because a state file contains the CPUs of all containers, only a few of which have changed
def cpu_list(cpus: Cpus) -> str:
    """Return the list that Linux and the kubelet write (Go: `CPUSet.String`), or an empty string for no CPUs."""
    ranges: list[list[int]] = []
    for cpu in cpu_ids(cpus):
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, one)) for one in ranges)


def parse_cpus(text: str) -> Cpus:
    """Return the set that a list such as `0-3,8` describes (Go: `cpuset.Parse`).

    Raises:
        InvalidCpuListError: the string is not such a list, or a number is above `MAX_CPU`.
    """
    cpus = 0
    if text:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            start = _number(first, text)
            end = _number(last, text) if dash else start
            if start > end:
                raise InvalidCpuListError(text)
            cpus |= (1 << end + 1) - (1 << start)
    return cpus


def _number(text: str, of: str) -> int:
    digits = text.removeprefix("+")  # Go accepts a plus sign
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20 and int(digits) <= MAX_CPU):
        raise InvalidCpuListError(of)
    return int(digits)
