"""What gRPC says of failed calls."""

import pytest

from devicecore.system.grpc_settings import own_details


@pytest.mark.parametrize(
    ("details", "own"),
    [
        ("Stream removed (Deadline Exceeded)", "Deadline Exceeded"),
        ("Stream removed (Socket closed (errno 9))", "Socket closed (errno 9)"),
        ("Stream removed", "Stream removed"),
        ("no such device (gpu-1)", "no such device (gpu-1)"),
        ("", ""),
    ],
)
def test_the_words_around_a_reason_are_left_out(details: str, own: str) -> None:
    assert own_details(details) == own
