"""What an API server returns when it refuses a request.

Law: every refusal is a `Status` object with the code, the reason and the sentence that kube-apiserver 1.36 uses. Only a
path in an unserved group or version is answered with plain text, as kube-apiserver does.
"""

from typing import Any, TypeVar

from attrs import frozen

from devicecore.domain.errors import DeviceCoreError
from devicecore.domain.text import foreign_text

T = TypeVar("T")

Json = dict[str, Any]
"""One API object."""

JsonValue = Any
"""A JSON object, list, string, number, boolean or null."""


def copied(value: T) -> T:
    """Return a copy of a JSON value, in a quarter of the time that `copy.deepcopy` takes."""
    result: Any = value
    if isinstance(value, dict):
        result = {name: copied(below) for name, below in value.items()}
    elif isinstance(value, list):
        result = [copied(below) for below in value]
    return result  # type: ignore[no-any-return]  # the copy has the type of the value


@frozen
class Cause:
    """One problem with an object. `kind` is the prefix of the message, such as `Invalid value: -1`."""

    field: str
    kind: str
    detail: str = ""

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as `FieldValueInvalid`."""
        if self.kind.startswith("conflict with"):
            return "FieldManagerConflict"
        what = self.kind.partition(":")[0].removesuffix(" value").title().replace(" ", "")
        return f"FieldValue{'NotSupported' if what == 'Unsupported' else what}"

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.field}: {self.kind}{detail}"


@frozen
class ApiError(DeviceCoreError):
    """A request that is answered with a Status, or with plain text.

    `retry_after` is in seconds. `about` is the qualified resource or kind, and the name, that the request concerned.
    If both strings in `about` are empty, the Status details contain neither. If `about` is None and there are no
    causes, the Status has no details.
    """

    code: int
    reason: str
    message: str
    causes: tuple[Cause, ...] = ()
    retry_after: int | None = None
    is_text: bool = False
    about: tuple[str, str] | None = None
    _text = "{message}"

    @property
    def status(self) -> Json:
        """The Status object."""
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        }
        details: Json = {}
        if self.about is not None:
            kind, _, group = self.about[0].partition(".")
            told = {"name": self.about[1], "group": group, "kind": kind}
            details = {name: text for name, text in told.items() if text}
        if self.causes:
            details["causes"] = [
                {"field": cause.field, "message": str(cause).partition(": ")[2], "reason": cause.reason}
                if cause.field
                else {"reason": cause.kind, "message": cause.detail}
                for cause in self.causes
            ]
        return {**status, "details": details} if details or self.about is not None else status


@frozen
class UnknownKindError(DeviceCoreError, ValueError):
    """An object has an unknown kind. `known` lists the kinds that the server has."""

    kind: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"the API server has no kind {foreign_text(self.kind)!r}; it has {', '.join(self.known)}"


def generic(code: int, reason: str, message: str) -> ApiError:
    """Return a refusal that does not say what the request was about: its details are present but empty."""
    return ApiError(code, reason, message, about=("", ""))


def not_found(resource: str, name: str) -> ApiError:
    """Return the error for an object that does not exist.

    `resource` is the qualified plural, such as `resourceclaims.resource.k8s.io`.
    """
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', about=(resource, name))


def unknown_group() -> ApiError:
    """Return the error for a group or version that the server does not have. The response is not a Status."""
    return ApiError(404, "NotFound", "404 page not found", is_text=True)


def unknown_path() -> ApiError:
    """Return the error for a path at which a known group serves nothing."""
    return generic(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str, *, is_ending: bool = False) -> ApiError:
    """Return the error for a name that an object already has. With `is_ending`, that object is being deleted."""
    message = f'{"object is being deleted: " if is_ending else ""}{resource} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, about=(resource, name))


def conflict(resource: str, name: str, problem: str) -> ApiError:
    """Return the error for a request that does not fit the current object."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {problem}'
    return ApiError(409, "Conflict", message, about=(resource, name))


def modified(resource: str, name: str) -> ApiError:
    """Return the error for a request that was made for an older version of the object."""
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, problem)


def invalid(kind: str, name: str, causes: list[Cause]) -> ApiError:
    """Return the error for an object that breaks the rules of its kind.

    `kind` is qualified, such as `ResourceSlice.resource.k8s.io`.
    """
    texts = [str(cause) for cause in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', tuple(causes), about=(kind, name))


def bad_request(message: str) -> ApiError:
    """Return the error for a request that is wrong in itself."""
    return ApiError(400, "BadRequest", message)


def expired(version: int, oldest: int) -> ApiError:
    """Return the error for a watch from a version to which the history no longer reaches back."""
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")


def too_large_version(version: int, current: int) -> ApiError:
    """Return the error for a version that no object has yet. A Go client then retries without a version."""
    problem = "Too large resource version"
    causes = (Cause("", "ResourceVersionTooLarge", problem),)
    return ApiError(504, "Timeout", f"{problem}: {version}, current: {current}", causes, retry_after=1)


def invalid_options(options: str, field: str, kind: str, detail: str = "") -> ApiError:
    """Return the error for an invalid option. `options` is the Go type of the options, such as `ListOptions`."""
    return invalid(f"{options}.meta.k8s.io", "", [Cause(field, kind, detail)])
