"""The law of `domain/model.py`.

"Text from outside is parsed once, by a function in this module. After that, each `ResourceName` is valid and each
health is a `Health`."
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devicecore.domain.errors import InvalidResourceNameError
from devicecore.domain.model import Health, ResourceName, is_extended_resource, resource_name
from devicecore.testing.strategies import invalid_resource_names, resource_names


@given(resource_names())
def test_a_valid_name_is_kept_as_it_is(name: ResourceName) -> None:
    """Parsing changes nothing, so parsing again changes nothing either."""
    assert resource_name(name) == name
    assert is_extended_resource(name)


@given(invalid_resource_names())
def test_an_invalid_name_is_refused_by_name(text: str) -> None:
    """The error has the refused name, and its text contains it."""
    assert not is_extended_resource(text)
    with pytest.raises(InvalidResourceNameError) as refusal:
        resource_name(text)
    assert refusal.value.name == text
    assert text in str(refusal.value)


@given(st.text())
def test_any_text_is_either_valid_or_not(text: str) -> None:
    """Any foreign text gives an answer, or only the error that is meant for it."""
    if is_extended_resource(text):
        prefix, name = text.split("/")
        assert prefix
        assert name
        assert len(text) <= 253 + 1 + 63
        assert text.isascii()


@given(st.text() | st.sampled_from(["Healthy", "Unhealthy", "healthy", "Healthy ", ""]))
def test_only_one_word_means_healthy(text: str) -> None:
    """Anything but exactly `Healthy` is unhealthy."""
    assert (Health.parse(text) is Health.HEALTHY) == (text == "Healthy")
