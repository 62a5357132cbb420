"""Rewriting of CEL expressions, because the library's functions and equality differ from Kubernetes'.

Law: a rewritten expression has the value that Kubernetes computes for the original. Expressions are lists of tokens
here, because the library does not expose the syntax tree.
"""

import re
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise

from attrs import frozen

_TOKEN = re.compile(
    r"""(?s)//[^\n]*|[rRbB]{0,2}(?:\"\"\".*?\"\"\"|'''.*?''')|[bB]?[rR][bB]?(?:"[^"\n]*"|'[^'\n]*')"""
    r"""|[bB]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|[A-Za-z_]\w*|\.?[0-9](?:[eE][+-](?=[0-9])|[\w.])*|[=!<>]=|&&|\|\||\s+|."""
)
_LITERAL = re.compile(r"""(?s)[0-9].*|[rRbB]{0,2}["'].*""")
_PLAIN_TEXT = re.compile(r"""(["'])([^"'\\\n]*)\1""")
_MAPS = ("attributes", "capacity")
_RENAMED = {name: f"bounded_{name}" for name in ("replace", "join", "range", "split")}
_GROUPS = 10
"""The maximum number of groups into which a list is split."""

_MAX_PARTS = 50
_VARIABLES = ("driver", "allowMultipleAllocations")
_FIELDS = (*_MAPS, *_VARIABLES)
_BIND = ["cel", ".", "bind", "("]
_DEVICE_PATH = re.compile(r"""device(\.\w+(\[("[^"\\]*"|'[^'\\]*')\](\.\w+)?)?)?""")
_CONVERSIONS = ("bool", "bytes", "double", "duration", "int", "string", "timestamp", "uint")
_PATTERNS = ("matches", "find", "findAll")
_KEYWORDS = frozenset(
    (
        *("in", "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "let", "loop"),
        *("package", "namespace", "null", "return", "true", "var", "void", "while"),
    )
)
_ENDS = ([], *([token] for token in ("&&", "||", "?", ":", ",")))
_AFTER_OPERAND = ("<", ">", "<=", ">=", "==", "!=", "in", ")", "]", "}", ",", "?", ":", "&&", "||")
_UNWRAP = ".filter(o, o.hasValue()).map(o, o.value())"


@frozen
class Pieces:
    """Expressions that together are equivalent to `[a, b].all(x, ...)` or `[a, b].exists(x, ...)`."""

    parts: tuple[list[str], ...]
    is_exists: bool


def tokens_of(expression: str) -> list[str]:
    """Return the tokens of an expression without white space and comments."""
    return [token for token in _TOKEN.findall(expression) if not token.isspace() and not token.startswith("//")]


def written_out(tokens: list[str]) -> list[str]:
    """Rewrite syntax that the library does not know: the device as a value, `device.?driver`, `unwrapOpt` ..."""
    found = _with_bound_names(tokens)
    for index in reversed(range(len(found))):
        one = found[index : index + 6]
        if name := _indexed_name(found, index):
            found[index + 6 : index + 9] = [".", name]
        if one[:3] == ["device", ".", "?"] and one[3:4] and one[3] in _FIELDS:
            found[index : index + 4] = ["optional", ".", "of", "(", "device", ".", one[3], ")"]
        elif one[:4] == ["has", "(", "device", "."] and one[5:] == [")"] and one[4] in _FIELDS:
            found[index : index + 6] = ["true"]
        elif one[:4] == [".", "unwrapOpt", "(", ")"]:
            found[index : index + 4] = tokens_of(_UNWRAP)
        elif one[:4] == ["optional", ".", "unwrap", "("] and (end := _closing(found, index + 3)) is not None:
            found[index : end + 1] = found[index + 3 : end + 1] + tokens_of(_UNWRAP)
    return found


def _indexed_name(tokens: Sequence[str], index: int) -> str:
    """Return the name in `device.attributes["domain"]["name"]` if the name may be written as `.name`, otherwise ""."""
    device, dot, what, opening, _, closing, second, name, end, *_ = [*tokens[index : index + 9], *[""] * 9]
    text = _PLAIN_TEXT.fullmatch(name)
    if (device, dot, opening, closing, second, end) != ("device", ".", "[", "]", "[", "]") or what not in _MAPS:
        return ""
    is_plain = text is not None and text[2].isidentifier() and text[2] not in _KEYWORDS
    return text[2] if text and is_plain and tokens[max(index - 2, 0) : index] != ["has", "("] else ""


def _with_bound_names(tokens: list[str]) -> list[str]:
    """Replace each name that `cel.bind` gives to a part of the device with that part.

    A missing domain thus stays an empty map.
    """
    found, index = list(tokens), 0
    while index < len(found):
        arguments = _arguments(found, index + 3) if found[index : index + 4] == _BIND else []
        if len(arguments) == 3 and _DEVICE_PATH.fullmatch("".join(arguments[1])):
            (name, *_), value, body = arguments
            end = index + 3 + sum(map(len, arguments)) + len(arguments)
            uses = [at for at, token in enumerate(body) if token == name and body[at - 1 : at] != ["."]]
            # a macro may use the same name for its variable
            if not any(body[at - 1 : at] == ["("] and body[at + 1 : at + 2] == [","] for at in uses):
                for at in reversed(uses):
                    body[at : at + 1] = value
                found[index : end + 1] = ["(", *body, ")"]
        index += 1
    return found


def _arguments(tokens: list[str], opening: int) -> list[list[str]]:
    """Return the arguments of a call. The result is empty if the bracket at `opening` is never closed."""
    end = _closing(tokens, opening)
    if end is None:
        return []
    return [tokens[a + 1 : b] for a, b in pairwise([opening, *_commas(tokens, opening, end), end])]


def with_mixed_numbers(tokens: list[str], columns: Container[int]) -> list[str]:
    """Rewrite comparisons such as `1 < 2.0`, so that numbers of two types are compared as in Kubernetes.

    `columns` contains the positions of these comparisons' operators, counted from 1, in `" ".join(tokens)`.
    """
    written, column = list(tokens), 1
    for index, token in enumerate(tokens):
        if column in columns:
            depth, end = 0, index + 1
            while end < len(tokens) and (depth or tokens[end] not in _AFTER_OPERAND or tokens[end - 1] == "."):
                depth += (tokens[end] in ("[", "(", "{")) - (tokens[end] in ("]", ")", "}"))
                end += 1
            written[index] += " dyn("
            written[end - 1] += ")"
        column += len(token) + 1
    return tokens_of(" ".join(written))


def for_evaluation(tokens: list[str]) -> str:
    """Rewrite a type-checked expression so that the library computes the same value as Go."""
    return " ".join(_with_defaults(_with_comparable_values(tokens)))


def constant_parts(tokens: list[str]) -> list[str]:
    """Return the parts of an expression that Kubernetes evaluates at compile time: `int("1")`, `"".matches("a+")`."""
    found = []
    for opening in (index for index, token in enumerate(tokens) if token == "(" and index):  # noqa: S105 - no password
        end = opening + 2 + (tokens[opening + 1 : opening + 2] == ["-"])
        name, literal = tokens[opening - 1], "".join(tokens[opening + 1 : end])
        is_method = tokens[max(opening - 2, 0) : opening - 1] == ["."]
        if tokens[end : end + 1] == [")"] and _LITERAL.fullmatch(literal.removeprefix("-")):
            if name in _CONVERSIONS and not is_method:
                found.append(f"{name}({literal})")
            elif name in _PATTERNS and is_method:
                # Kubernetes rejects functions that only the library knows
                found += [f"''.{name}({literal})", f"''.find({literal})"]
    return list(dict.fromkeys(found))


def is_unknown_type(tokens: list[str]) -> bool:
    """Return whether the whole expression is `dyn(...)`.

    Kubernetes refuses such an expression, although it accepts an attribute, whose type is also unknown.
    """
    return tokens[:2] == ["dyn", "("] and _closing(tokens, 1) == len(tokens) - 1


def reads(tokens: Sequence[str]) -> tuple[tuple[str, str, str], ...] | None:
    """Return the map, domain and name of each attribute and capacity that an expression reads, or None if unknown.

    They are known if each use of the device is `device.driver`, `device.attributes["domain"].name`, or the like.
    """
    found = []
    for index in (index for index, token in enumerate(tokens) if token == "device"):  # noqa: S105 - no password
        following = [token for token in tokens[index + 1 : index + 10] if token != "?"]  # noqa: S105 - as above
        dot, what, opening, domain, closing, second, name, after, *_ = [*following, *[""] * 8]
        if dot == "." and what in _VARIABLES:
            continue
        text = _PLAIN_TEXT.fullmatch(domain)
        is_field = (dot, opening, closing, second) == (".", "[", "]", ".") and what in _MAPS and after != "("
        if not (is_field and text and name.isidentifier()):
            return None
        found.append((what, text[2], name))
    return tuple(dict.fromkeys(found))


def pieces(tokens: list[str], depth: int = 2) -> Pieces | None:
    """Return the pieces of `[a, b].all(x, ...)` or `[a, b].exists(x, ...)`. Return None for anything else."""
    end = _closing(tokens, 0) if tokens[:1] == ["["] and depth else None
    called = tokens[end + 2 : end + 3] + tokens[end + 4 : -1] if end else []
    name, variable, *body = called if len(called) > 1 else ["", ""]
    is_whole = end and tokens[end + 3 : end + 4] == ["("] and _closing(tokens, end + 3) == len(tokens) - 1
    if name not in ("all", "exists") or not is_whole or end is None or body[:1] != [","]:
        return None
    edges = [0, *_commas(tokens, 0, end), end]
    size = -(-(len(edges) - 1) // _GROUPS)
    groups = [tokens[a + 1 : b] for a, b in pairwise([*edges[:-1:size], end])]
    is_exists = name == "exists"
    inner = pieces(body[1:], depth - 1)
    wanted = inner.parts if inner and inner.is_exists == is_exists else (body[1:],)
    call = ["]", ".", name, "(", variable, ","]
    return Pieces(tuple(["[", *group, *call, *one, ")"] for group in groups for one in wanted), is_exists)


def _with_comparable_values(tokens: list[str]) -> list[str]:
    """Rewrite comparisons of an attribute so that comparing a version with another type fails, as in Go.

    In Go, `version == text` and `version in [text]` fail, `text == version` is false, and comparisons with `!=` are
    true.
    """
    written = list(tokens)
    for middle, operator in enumerate(tokens):
        if operator not in ("==", "!=", "in"):
            continue
        start = middle + 1
        before = _start_of_default(tokens, middle)
        if before is None:
            before = next((middle - size for size in (8, 11) if _operand_size(tokens, middle - size) == size), None)
        after = start + _operand_size(tokens, start)
        if before is None or after == start or tokens[before - 1 : before] not in (*_ENDS, ["("], ["["]):
            continue
        if tokens[after : after + 1] not in (*_ENDS, [")"], ["]"]):
            continue
        left, right = " ".join(tokens[before:middle]), " ".join(tokens[start:after])
        is_list = tokens[start] == "["
        written[before] = f"({written[before]}"
        written[after - 1] += ")"
        if operator == "==" or (is_list and operator == "in" and _is_plain(tokens[start + 1 : after - 1])):
            compared = '""' if operator == "in" else right
            written[before] = f"(!comparable({left}, {compared}) ? false : {written[before][1:]}"
        if is_list and operator != "in":
            value = "false" if operator == "!=" else "true"
            written[before] = f"(unlike_versions({left}, {right}) ? {value} : {written[before][1:]}"
    return tokens_of(" ".join(written))


def _start_of_default(tokens: Sequence[str], end: int) -> int | None:
    """Return the start of the `device.attributes["domain"].?name.orValue(...)` that ends at `end`, or None."""
    starts = (at for at in range(max(end - 40, 0), end - 11) if tokens[at] == "device")
    for at in starts:
        rest = [token for token in tokens[at:end] if token != "?"]  # noqa: S105 - no password
        device, dot, what, opening, domain, closing, *more = rest
        is_path = (device, dot, what, opening, closing) == ("device", ".", "attributes", "[", "]")
        called = next((index + 1 for index in range(at, end) if tokens[index] == "orValue"), end)
        is_path = is_path and more[:1] + more[2:5] == [".", ".", "orValue", "("]
        if is_path and _PLAIN_TEXT.fullmatch(domain) and _closing(tokens, called) == end - 1:
            return at
    return None


def _is_plain(elements: Sequence[str]) -> bool:
    """Return whether there is at least one element and all elements are literals.

    Go looks such elements up in a set, which contains no versions.
    """
    return bool(elements) and all(one in (",", "-", "true", "false") or _LITERAL.fullmatch(one) for one in elements)


def _operand_size(text: Sequence[str], start: int) -> int:
    """Return the number of tokens of the attribute, element, call or literal that begins at `start`, or 0."""
    if start < 0:
        return 0
    first, following, *_ = [*text[start : start + 2], "", ""]  # padded: `start` may be the last token
    has_sign = first == "-"
    if _LITERAL.fullmatch(following if has_sign else first) or first in ("true", "false"):
        return 1 + has_sign
    at = start + (first.isidentifier() and following == "(")
    if text[at : at + 1] in (["["], ["{"], ["("]) and (end := _closing(text, at)) is not None:
        return end - start + 1
    # Ten empty tokens are added, so that even an expression that ends early can be unpacked; it then does not match.
    dot, what, opening, domain, closing, second, name, *more = [*text[start + 1 : start + 11], *[""] * 10]
    found = text[start], dot, what, opening, closing, second
    if found != ("device", ".", "attributes", "[", "]", ".") or not _PLAIN_TEXT.fullmatch(domain):
        return 0
    if more[0] == "[" and more[1].isdigit() and more[2] == "]":
        return 11
    return 8 if name.isidentifier() and more[0] not in ("(", "[", ".") else 0


def _with_defaults(tokens: list[str]) -> list[str]:
    """Rewrite an expression so that a missing domain is an empty map, and strings cannot grow without bound."""
    around = zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False)
    written = [_RENAMED.get(token, token) if (dot, opening) == (".", "(") else token for dot, token, opening in around]
    for first in range(len(tokens) - 4):
        device, dot, name, opening, following = tokens[first : first + 5]
        if (device, dot, opening) != ("device", ".", "[") or name not in _MAPS or tokens[first - 1 : first] == ["."]:
            continue
        closing = _closing(tokens, first + 3)
        if closing is None:
            continue
        if following == "?":
            written[first] = "optional.of(" + written[first]
            written[closing] += ".orValue({}))"
        else:
            written[first + 3] += "?"
            written[closing] += ".orValue({})"
    return written


def with_literals_apart(tokens: list[str]) -> list[str]:
    """Rewrite `[a, b]` as `([a] + [b])`, and maps in the same way, so that elements of two types are an error."""
    written = list(tokens)
    for opening, closing in _brackets(tokens):
        before = tokens[opening - 1] if opening else ""
        commas = list(_commas(tokens, opening, closing))
        parts = [tokens[a + 1 : b] for a, b in pairwise([opening, *commas, closing])]
        is_call = before.isidentifier() and before != "in"
        if is_call or before in (")", "]", "}") or _LITERAL.fullmatch(before) or not commas:
            continue
        if any(not part or part[0] == "?" for part in parts) or _is_formatted(tokens, opening):
            continue
        first, between, last = ("([", "] + [", "])") if tokens[opening] == "[" else ("([{", "}] + [{", "}])[0]")
        written[opening], written[closing] = first, last
        known = [parts[0]]
        for comma, end, part in zip(commas, [*commas[1:], closing], parts[1:], strict=True):
            if part not in known and len(known) < _MAX_PARTS:
                written[comma] = between
                known.append(part)
            else:
                written[comma:end] = [""] * (end - comma)  # the element repeats another one, or comes after the limit
    return written


def literals(tokens: list[str]) -> Iterator[list[list[str]]]:
    """Yield the elements of each list literal that has more than one element."""
    for opening, closing in _brackets(tokens):
        before = tokens[opening - 1] if opening else ""
        is_index = (before.isidentifier() and before != "in") or before in (")", "]", "}") or _LITERAL.fullmatch(before)
        edges = [opening, *_commas(tokens, opening, closing), closing]
        parts = [tokens[a + 1 : b] for a, b in pairwise(edges)]
        if tokens[opening] == "[" and not is_index and len(parts) > 1 and not _is_formatted(tokens, opening):
            yield [part[part[:1] == ["?"] :] for part in parts if part]


def formatted(tokens: list[str]) -> Iterator[list[str]]:
    """Yield the elements of lists that are passed to `format`."""
    for opening, _ in _brackets(tokens):
        if tokens[opening] == "[" and _is_formatted(tokens, opening):
            yield from filter(None, _arguments(tokens, opening))


def _is_formatted(tokens: list[str], opening: int) -> bool:
    return tokens[max(opening - 3, 0) : opening] == [".", "format", "("]


def _brackets(tokens: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the position of each `[` and `{`, with the position of the closing bracket."""
    for opening, token in enumerate(tokens):
        if token in ("[", "{") and (closing := _closing(tokens, opening)) is not None:
            yield opening, closing


def _commas(tokens: list[str], opening: int, closing: int) -> Iterator[int]:
    depth = 0
    for index in range(opening + 1, closing):
        depth += (tokens[index] in ("[", "(", "{")) - (tokens[index] in ("]", ")", "}"))
        if tokens[index] == "," and depth == 0:
            yield index


def _closing(tokens: Sequence[str], opening: int) -> int | None:
    """Return the position of the bracket that closes the bracket at `opening`, or None if it is never closed."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index] in ("[", "(", "{")) - (tokens[index] in ("]", ")", "}"))
        if depth == 0:
            return index
    return None
