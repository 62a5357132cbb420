"""Whatever manifests, state files, kubeconfigs and API responses contain, they become values or raise our errors."""

import json
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from devicecore.system.documents import read_documents
from tests.reliability import fuzz_targets

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=10)
data = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(texts, data, min_size=1, max_size=3)
words = st.sampled_from(
    [
        *("apiVersion: v1\n", "kind: Pod\n", "kind: List\n", "metadata: {name: a}\n", "spec:\n", "items:\n"),
        *("  containers:\n", "  - name: b\n", "  - &a {name: c}\n", "  - *a\n", "  - {<<: *a}\n", "---\n", "{}", "{"),
        *("    resources: {limits: {acme.io/gpu: 2}}\n", "[", "]", "}", "'", '"', ": ", "- ", "\n", "\t", "1:0", "&a "),
    ]
)


@given(objects)
def test_json_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    (document,) = read_documents(json.dumps(value, indent="\t"), "x")
    assert document.data == value


@given(objects.filter(lambda value: "<<" not in str(value)))
@example({"y": "n"})
def test_yaml_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    """Quoted, because PyYAML writes some strings plain that Kubernetes reads differently, such as `y`."""
    (document,) = read_documents("---\n" + yaml.safe_dump(value, default_style='"'), "x")
    assert document.data == value


@given(st.lists(words, max_size=20).map("".join) | texts)
@example("{" * 5000)
def test_every_manifest_is_pods_or_one_line(text: str) -> None:
    fuzz_targets.manifest(text.encode())


@given(objects.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=50))
@example(b'{"boot": "boot", "files": {}, "running": ["v"]}\n"w"\n"x')
def test_every_state_file_is_used_or_ignored(blob: bytes) -> None:
    fuzz_targets.pods_file(blob)


NODE_KEYS = ["metadata", "status", "capacity", "allocatable", "name", "resourceVersion", "managedFields", "manager"]
node_keys = st.sampled_from([*NODE_KEYS, "fieldsV1", "operation", "subresource", "f:status", "f:capacity"])
node_parts = st.recursive(
    data | st.sampled_from(["devicecore", "Apply", "status", "4k", "1e3", "9" * 300]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(node_keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(node_keys, node_parts, max_size=4))
@example({"metadata": {"name": "a", "resourceVersion": "1"}, "status": {"capacity": {"acme.io/gpu": "1e999999999"}}})
def test_every_answer_is_a_node_or_one_line(answer: dict[str, Any]) -> None:
    fuzz_targets.api_answer(json.dumps(answer).encode())


KUBECONFIG_KEYS = ["clusters", "users", "contexts", "current-context", "name", "cluster", "user", "context", "server"]
kubeconfig_keys = st.sampled_from(
    [*KUBECONFIG_KEYS, "exec", "token", "as", "apiVersion", "command", "proxy-url", "env"]
)
kubeconfig_parts = st.recursive(
    st.sampled_from(["a", "http://a", "https://[", "http://a:b", "http://\x00", "", 1, None, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(kubeconfig_keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(kubeconfig_keys, kubeconfig_parts, max_size=5).map(json.dumps) | texts)
def test_every_kubeconfig_is_used_or_refused(text: str) -> None:
    fuzz_targets.kubeconfig(text.encode())
