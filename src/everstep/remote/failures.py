"""What a store can answer: no, not now, nothing there, not as it was."""

from everstep import redaction

_REFUSALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "ProfileNotFound",
    "ParamValidationError",
    "InvalidRegionError",
}
_GARBLED = {"HTTPClientError", "ClientResponseError"}
"""What clients make of an answer that is no HTTP: they give it the status 400, as if it were a refusal."""

_STATUS_REFUSED = {400, 401, 403, 405, 410}


class StoreError(Exception):
    """A store did not do what it was asked for; the text fits on a line and holds no secret.

    Attributes:
      permanent: Whether asking again will not help: no such bucket, no permission, no credentials.
    """

    def __init__(self, text: str, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent


class Absent(StoreError):
    """There is no such object."""

    def __init__(self, text: str) -> None:
        super().__init__(text, permanent=True)


class Altered(StoreError):
    """An object is not as it was uploaded, also when it is fetched again."""


def is_permanent(error: BaseException) -> bool:
    """Returns whether it is of no use to try again what ended so."""
    if isinstance(error, StoreError):
        return error.permanent
    if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return True
    if type(error).__name__ in _REFUSALS or str(error).startswith("Forbidden"):
        return True
    return type(error).__name__ not in _GARBLED and status_of(error) in _STATUS_REFUSED


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error comes from, if it tells."""
    for candidate in (error, error.__cause__, error.__context__):
        response = getattr(candidate, "response", None)
        told = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        for value in (told, getattr(candidate, "status", None) or getattr(candidate, "code", None)):
            if isinstance(value, int | str) and str(value).isdecimal():
                return int(value)
    return None


def brief(error: BaseException) -> str:
    """Returns an error in one line, without secrets."""
    lines = str(error).strip().splitlines()
    text = " ".join(line.strip() for line in lines[:2])[:300]
    if isinstance(error, StoreError):
        return redaction.text(text)
    if isinstance(error, FileNotFoundError):
        return redaction.text(f"there is no such bucket or object ({text})")
    if isinstance(error, TimeoutError) or type(error).__name__ == "FSTimeoutError":
        return "no answer in time"
    return redaction.text(f"{type(error).__name__}: {text}" if text else type(error).__name__)
