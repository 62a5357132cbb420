"""CEL: results recorded from Kubernetes 1.36.2, and limits."""

import json

import pytest

from devicecore.adapters.cel import MAX_EXPRESSION, CelSelectors
from devicecore.domain.allocation import Features, PoolDevice, SelectorError, slice_of
from tests.recorded import Json, check_each
from tests.recorded_allocations import recordings, selectors

NESTED = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


def device_of(driver: str, body: Json) -> PoolDevice:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "node", "pool": pool, "devices": [{"name": "device", **body}]}
    return slice_of({"metadata": {"name": "slice"}, "spec": spec}).devices[0]


def outcome(cel: CelSelectors, expression: str, device: PoolDevice) -> tuple[bool | None, str]:
    try:
        return cel(expression, device), ""
    except SelectorError as error:
        return None, str(error)


def test_expressions_have_the_values_that_they_have_in_kubernetes() -> None:
    def check(recording: Json) -> None:
        features = recording["features"]
        cel = selectors(
            Features(consumable_capacity=features["ConsumableCapacity"], list_attributes=features["ListTypeAttributes"])
        )
        expression, driver = recording["expression"], recording["driver"]
        if recording["compileError"]:
            recording["devices"] = [{"device": {}, "result": None, "error": "compile error"}]
        for one in recording["devices"]:
            value, problem = outcome(cel, expression, device_of(driver, one["device"]))
            assert (value, bool(problem)) == (one["result"], bool(one["error"])), (
                f"{problem} {json.dumps(one['device'])}"
            )

    check_each(recordings("cel.jsonl"), check)


@pytest.mark.parametrize(
    "expression",
    [
        '[device.attributes["a.example.com"].v, "a"].size() == 2',
        *('[1, "a"].size() == 2', '{"a": 1, "b": "c"}.a == 1', '[[1], ["a", 2]].size() == 2'),
        '"%s".format([device.attributes["a.example.com"].v]) == "1.0.0"',
        'true || int("a") == 1 || "a".matches("(")',
        *('true || "a".find("(") == ""', "dyn(true)", "[1].existsOne(x, x == 1)", "true || uint(-1) == 0u"),
        '[quantity("1")].sum() == quantity("1")',
        '[[1]].isSorted() || [semver("1.0.0")].max() == semver("1.0.0")',
        *("true || 'a'.matches('\\\\C')", "true || 'a'.findAll(r'[a]b\\C') == []"),
        *('type(semver("1.0.0")) == kubernetes.Semver', '{"n": 1}.`n` == 1'),
    ],
)
def test_what_kubernetes_refuses_when_it_compiles_is_refused(expression: str) -> None:
    with pytest.raises(SelectorError) as caught:
        selectors(Features()).check(expression)
    assert not caught.value.at_run_time


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        *(("1", "int"), ("'a'", "string"), ("1u", "uint"), ("1.5", "double"), ("b'a'", "bytes"), ("null", "null_type")),
        *(("[1]", "list(int)"), ("{}", "map(dyn, dyn)"), ("{1: [1.5]}", "map(int, list(double))")),
        *(("duration('1s')", "google.protobuf.Duration"), ("quantity('1')", "kubernetes.Quantity")),
        *(("ip('1.2.3.4')", "net.IP"), ("cidr('10.0.0.0/8')", "net.CIDR"), ("optional.of(1)", "optional_type(int)")),
        *(("type('a')", "type(string)"), ("device.attributes", "map(string, map(string, dyn))")),
    ],
)
def test_a_selector_of_another_type_is_refused_in_the_words_of_kubernetes(expression: str, kind: str) -> None:
    with pytest.raises(SelectorError) as caught:
        selectors(Features()).check(expression)
    assert caught.value.problem == f"must evaluate to bool or the unknown type, not {kind}"


@pytest.mark.parametrize("expression", ["device.", "[1].all(x, x +", 'device.attributes["a.example.com"].none'])
def test_an_error_that_is_remembered_has_the_traceback_of_one_call(expression: str) -> None:
    cel, lengths = CelSelectors(), []
    for _ in range(3):
        with pytest.raises(SelectorError) as caught:
            cel(expression, device_of("a.example.com", {}))
        lengths.append(len(caught.traceback))
    assert lengths[1] == lengths[2]


@pytest.mark.parametrize(
    "expression",
    [
        '[1, 2, 3, ].size() == 3 && {"a": 1, "b": 2}.b == [4, 2][1]',
        '[?optional.of(1), 2].size() == 2 && "%s %d".format(["a", 1]) == "a 1"',
        '["a", "b"].exists(x, "%s".format([x]) == "b")',
        'isSemver("v01.2", true) && !isSemver("1.2-rc", true) && !isSemver(" 1.2.3", true)',
        '!isQuantity("1e9999999999999999999") && isQuantity("1e999")',
        'isURL("mailto:a@b") && url("/a b?k=v&k=").getQuery()["k"] == ["v", ""]',
        '"ab(1)".find("(b)([(])(?P<n>[0-9])") == "b(1" && "a[1] b2".findAll("([a-z])([[]?)[0-9]") == ["a[1", "b2"]',
        f'"{"a" * 60}!".find("(a+)+$") == "" && "{"a" * 60}!".findAll("(a+)+$").size() == 0',
        'url("https://a.b/a b").getEscapedPath() == "/a%20b"',
        "optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(1)].unwrapOpt() == [1]",
        '["b", "a"].min() == "a" && [dyn(1), dyn(2)].max() == 2 && [2.5].sum() == 2.5 && [].sum() == 0',
        'has(device.driver) && device.?driver.orValue("x") == "a.example.com" && !device.allowMultipleAllocations',
        'cel.bind(d, device, cel.bind(a, d.attributes["none"], a.size() == 0 && d.driver == "a.example.com"))',
        r"""!'a'.matches(r'\\C|\Q\C\E')""",
        "1 < 2.5 && 3u > -2.5 && [1].existsOne(i, x, x == 1) && [1, 2].isSorted()",
        '2.5 + 1.0 > [1].size() &&\n3u - 1u > {"a": -1}.?a.orValue(2) && -(1.5) <= [4, 2][1]',
        "2.5 > -9223372036854775808 && -9223372036854775808 < 0u && lists.range(3) == [0, 1, 2]",
        'has({"join": 1}.join) && {"range": 1}.range == 1 && isSemver("1.0.18446744073709551615-a+1")',
        '["10.0.0.0/08", "10.0.0.0/255.0.0.0", "fe80::1%eth0/64", "::ffff:1.2.3.4/96", "1.2.3.4"].all(x, !isCIDR(x))',
        '!isSemver("1.0.0-18446744073709551616") && !isSemver("18446744073709551616.0.0")',
        'quantity("100E").isGreaterThan(quantity("10E")) && !quantity("100E").isInteger()',
    ],
)
def test_what_kubernetes_accepts_is_true(expression: str) -> None:
    assert selectors(Features())(expression, device_of("a.example.com", {}))


@pytest.mark.parametrize(
    ("macro", "condition", "value"),
    [
        ("all", "v0 + v4 > 1", True),
        ("all", "v0 < 10 || v3 > 0 && v4 < 10", False),
        ("exists", "v0 + v1 + v2 + v3 + v4 == 50", True),
        ("exists", "v0 in [11]", False),
        ("exists", "v0 / (v4 - v4) == 1", None),
    ],
)
def test_a_long_macro_is_evaluated_in_pieces(macro: str, condition: str, *, value: bool | None) -> None:
    """The macro visits 100,000 elements, but the CEL library stops an evaluation after 10,000."""
    expression = "".join(f"{NESTED}.{macro}(v{index}, " for index in range(5)) + condition + ")" * 5
    assert outcome(selectors(Features()), expression, device_of("a.example.com", {}))[0] is value


@pytest.mark.parametrize(
    ("quantity", "is_integer"),
    [("2Gi", True), ("99Ti", True), ("100Ti", False), ("1.5Ti", False), ("1.5k", True), ("1.0", False), ("3e2", True)],
)
def test_whether_a_number_is_an_integer_depends_on_its_spelling_as_in_go(quantity: str, *, is_integer: bool) -> None:
    cel, device = selectors(Features()), device_of("a.example.com", {"capacity": {"m": {"value": quantity}}})
    assert cel('device.capacity["a.example.com"].m.isInteger()', device) is is_integer
    assert cel(f'quantity("{quantity}").isInteger()', device) is is_integer
    assert cel(f'device.capacity["a.example.com"].m == quantity("{quantity}").add(quantity("0"))', device)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('device.attributes["a.example.com"].v == "1.0.0"', None),
        ('"x" == device.attributes["a.example.com"].v || device.attributes["a.example.com"].v != "1.0.0"', True),
        ('device.attributes["a.example.com"].v in ["1.0.0", "2.0.0"]', None),
        ('cel.bind(a, device.attributes["a.example.com"], a.v == "1.0.0")', None),
        ('device.attributes["a.example.com"].v == 1 || true', True),
        *((f'device.attributes["a.example.com"].v == {one}', None) for one in ("-1", "true", "[0]", 'quantity("1")')),
        ('device.attributes["a.example.com"].v == null', False),
        ('device.attributes["a.example.com"].v == semver("1.0.0")', True),
        ('device.attributes["a.example.com"]["v"] == "1.0.0"', None),
        ('device.attributes["a.example.com"].?v.orValue(semver("0.0.0")) == "1.0.0"', None),
        ('device.attributes["a.example.com"].?v.orValue(true ? "a" : "b") == "x"', None),
        ('device.attributes["a.example.com"].?t.orValue(true ? "a" : "b") == "1.0.0"', True),
        ('has(device.attributes["a.example.com"]["v"])', None),
        ('"".split("") == [] && "ab".split("", 1) == ["ab"] && "a,b,c".split(",", 2) == ["a", "b,c"]', True),
        ('device.attributes["a.example.com"].t == "1.0.0" && device.attributes["a.example.com"].t != "x"', True),
        ('device.attributes["a.example.com"].l == ["x", "y"]', True),
        ('device.attributes["a.example.com"].l != ["x", "y"] || device.attributes["a.example.com"].l == ["x"]', False),
        ('[1].exists(x, device.attributes["a.example.com"].t == "2.0.0" ? true : false)', False),
    ],
)
def test_a_version_cannot_be_compared_with_a_literal(expression: str, value: bool | None) -> None:
    body = {"attributes": {"v": {"version": "1.0.0"}, "t": {"string": "1.0.0"}, "l": {"versions": ["1.0.0", "2.0.0"]}}}
    assert outcome(selectors(Features(list_attributes=True)), expression, device_of("a.example.com", body))[0] is value


def test_a_value_is_remembered_only_for_devices_that_say_the_same() -> None:
    cel, name = CelSelectors(), "a.example.com"
    texts = [device_of(name, {"attributes": {key: {"string": "x"}}}) for key in ("t", f"{name}/t", "b.example.com/t")]
    others = [device_of("b.example.com", {"attributes": {"t": {"string": "x"}}}), device_of(name, {}), texts[0]]
    numbers = [device_of(name, {"attributes": {"t": {"int": 1}}}), device_of(name, {"attributes": {"t": {}}})]
    values = [outcome(cel, f'device.attributes["{name}"].t == "x"', one)[0] for one in (*texts, *others, *numbers)]
    assert values == [True, True, None, None, None, True, False, None]


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == '" + "x" * MAX_EXPRESSION + "'",
        "(" * 5000 + "true" + ")" * 5000,
        f"{NESTED}.all(a, " * 6 + "true" + ")" * 6,
        "'aaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaa')" * 40 + " == ''",
        "".join(f"cel.bind(v{n}, {f'v{n - 1} + v{n - 1}' if n else repr('x' * 99)}, " for n in range(60))
        + "v59 == ''"
        + ")" * 60,
        "'x'.matches('" + "(" * 200 + "a" + "{9})" * 200 + "')",
        *("lists.range(9223372036854775807) == []", "lists.range(-1) == []", "[9223372036854775807, 1].sum() < 0"),
        *('cidr("::/0").containsIP("::ffff:1.2.3.4")', "device.attributes[", "\ud800", ""),
    ],
)
def test_a_hostile_expression_is_an_error(expression: str) -> None:
    value, problem = outcome(selectors(Features()), expression, device_of("a.example.com", {}))
    assert value is None
    assert len(problem) < 1_100


def test_an_expression_is_compiled_once() -> None:
    cel, device = CelSelectors(), device_of("a.example.com", {})
    assert cel("true", device)
    assert cel("true", device)
    assert cel._compiled.cache_info().misses == 1  # noqa: SLF001 - to count
