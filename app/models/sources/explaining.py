"""Why a fetch did not work, as one sentence with what to do."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import CannotRunError
from app.models.sources.choosing import INDEX

_NUMBER = re.compile(r"\[(Errno|WinError) -?\d+\] *")


def explained(error: BaseException, repo: str, cache: Path) -> CannotRunError:
    """The sentence for what huggingface_hub, the network or the disk raised while fetching `repo` into `cache`."""
    from huggingface_hub import constants, errors

    where = constants.ENDPOINT
    chain = list(_chain(error))
    for one in chain:
        if isinstance(one, errors.GatedRepoError):
            return CannotRunError(
                f"{repo} wants its licence accepted first: open {where}/{repo} in a browser, accept it there, then let "
                "this machine in with `hf auth login` (or HF_TOKEN in the environment), and fetch it again."
            )
        if isinstance(one, errors.DisabledRepoError):
            return CannotRunError(f"{repo} was taken down at {where}: choose another model.")
        if isinstance(one, errors.RepositoryNotFoundError):
            return CannotRunError(
                f"{where} has no repository {repo}, or keeps it private: check its name; for a private one, let this "
                "machine in with `hf auth login`."
            )
        if isinstance(one, (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError)):
            return CannotRunError(f"{where} lists a file of {repo} that it does not have ({_first(one)}): try later.")
        if isinstance(one, errors.OfflineModeIsEnabled):
            return offline(repo)
        if isinstance(one, errors.HfHubHTTPError):
            return CannotRunError(f"{where} refused {repo} ({_status(one)}): {_again(_status(one))}.")
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return CannotRunError(
                f"The disk that holds {cache} is full, so {repo} is not whole; what came is kept: free some space and "
                "fetch it again, or set HF_HOME to a folder on another disk."
            )
        if isinstance(one, PermissionError) or getattr(one, "errno", None) == errno.EROFS:
            return CannotRunError(f"{cache} can't be written ({_first(one)}): set HF_HOME to another folder.")
    names = {type(one).__name__ for one in chain}
    if names & {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol", "InvalidURL"}:
        host = urlsplit(where).netloc or where
        return CannotRunError(
            f"There is no connection to {host} ({_unreached(chain)}): check this machine's network, its proxy, and "
            "HF_ENDPOINT if you set it."
        )
    if names & {"ReadTimeout", "ReadError", "RemoteProtocolError", "WriteError", "PoolTimeout", "TimeoutException"}:
        return CannotRunError(
            f"The connection to {where} broke off while {repo} was fetched ({_first(error)}); what came is kept: fetch "
            "it again to go on."
        )
    if isinstance(error, ValueError) and INDEX in str(error):
        return CannotRunError(f"The {INDEX} of {repo} can't be read ({_first(error)}): choose another model.")
    return CannotRunError(f"{repo} could not be fetched ({_first(error)}); what came is kept: try again.")


def offline(repo: str) -> CannotRunError:
    """Nothing may be fetched."""
    return CannotRunError(f"HF_HUB_OFFLINE is set, so nothing is fetched: unset it to fetch {repo}.")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _unreached(chain: Sequence[BaseException]) -> str:
    """Why there is no connection, without the system's numbers."""
    if any(isinstance(one, socket.gaierror) for one in chain):
        return "no machine of that name was found"
    return _first(chain[-1])


def _first(error: BaseException) -> str:
    lines = _NUMBER.sub("", str(error)).strip().splitlines()
    return (lines[0].rstrip(".:")[:200] if lines else "") or type(error).__name__


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _again(status: int) -> str:
    if status == 429:
        return "it was asked too often, so wait some minutes and fetch it again; what came is kept"
    if status in (401, 403):
        return "let this machine in with `hf auth login`, or check that your token may read it"
    return "try again later; what came is kept"
