"""What a check reads from the paths that a plugin gives to containers."""

from pathlib import Path

from devicecore_tools.conformance.device_plugin.devices import contents_of

from devicecore.wire import deviceplugin


def test_what_cannot_be_read_hides_no_other_file(tmp_path: Path) -> None:
    """A dangling link, a link to itself, a long file and a directory come before the file."""
    (tmp_path / "a").symlink_to("nothing")
    (tmp_path / "b").symlink_to("b")
    (tmp_path / "c").write_bytes(bytes(65_537))
    (tmp_path / "d").mkdir()
    (tmp_path / "e").write_bytes(b"text")
    answer = deviceplugin.ContainerAllocateResponse()
    for place in ("/no\0path", str(tmp_path / "missing"), str(tmp_path)):
        answer.mounts.add(host_path=place)
    assert contents_of(answer) == {f"the file {tmp_path / 'e'}": b"text"}


def test_a_file_without_a_size_is_not_read_to_its_end() -> None:
    """Linux says that files in /proc have 0 bytes."""
    answer = deviceplugin.ContainerAllocateResponse()
    answer.mounts.add(host_path="/proc/kallsyms")
    assert contents_of(answer) == {}
