"""Documents that cost a careless YAML or JSON reader a lot of time or memory, or crash its process."""

from collections.abc import Mapping

from devicecore.system.documents import MAX_DOCUMENT_SIZE

_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n  - name: main\n"
_SIZE = MAX_DOCUMENT_SIZE - 100
HOSTILE: Mapping[str, str] = {
    "base 60": "x: 1" + ":0" * 180 + ".0",
    "much base 60": "x: " + "1:0:0\n" * (_SIZE // 6),
    "hexadecimal": "x: 0x" + "f" * 3600,
    "merge keys": "".join(
        f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 10)}]}}\n" if old else f"{new}: &{new} {{k: 1}}\n"
        for old, new in zip(["", *"abcdefghi"], "abcdefghij", strict=True)
    ),
    "many documents": "{}\n" * (_SIZE // 3),
    "many documents in a line": "{}" * (_SIZE // 2),
    "many containers": _POD + "".join(f"  - name: c{number}\n" for number in range(48_000)),
    "6,000 containers": _POD + "".join(f"  - name: c{number}\n" for number in range(6_000)),
    "4,000 pods": "".join(_POD.replace("train", f"p{number}") + "---\n" for number in range(4_000)),
    "JSON nested deeply": '{"a":' * (_SIZE // 5),
    "YAML nested deeply": "[" * _SIZE,
    "blocks nested deeply": "- " * (_SIZE // 2),
    "aliases": "a0: &a0 [0]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 50}]\n" for n in range(1, 20)),
    "aliases in a chain": "a0: &a0 []\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 40_000)),
    "aliases of a long text": "a: &a " + "x" * (_SIZE // 2) + "\nb: [" + "*a," * (_SIZE // 8) + "]",
    "tag directives": "".join(f"%TAG !{number}! x\n" for number in range(60_000)),
    "numbers": '{"a": [' + "9," * (_SIZE // 2 - 10) + "9]}",
    "a long number": '{"a": ' + "9" * (_SIZE - 10) + "}",
    "escapes": "a: \x1b[31m",
    "UTF-16": _POD.encode("utf-16").decode("latin-1"),
    "half of a surrogate pair": _POD.replace("train", '"\\ud800"'),
}
"""The documents, by what makes them hostile."""
