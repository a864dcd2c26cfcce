"""Files of repositories on a hub of models, by `huggingface_hub`: its environment variables say where, and who asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rlpto import __version__
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError
from rlpto.io.reading import one_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def upload(repo: str, files: Mapping[str, bytes], private: bool) -> str:
    """Write files to a repository in one commit, and make the repository if it is not there. Returns the commit's id.

    private: only with a token it can be read. Raises ConfigError if a public one is there, or the hub refuses.
    """
    with _asking(repo) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ConfigError(f"{repo}: a public repository is there, expected a private one; nothing was uploaded")
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        return str(api.create_commit(repo, added, commit_message=f"Upload with RLPTO {__version__}").oid)


def download(repo: str, name: str, largest: int) -> tuple[bytes, str]:
    """Content of a file of a repository, and the id of the commit that it is of. largest: bytes.

    Raises CheckpointError if the file is larger, ConfigError if the hub refuses.
    """
    with _asking(repo) as api, TemporaryDirectory() as folder:
        from huggingface_hub import hf_hub_url

        found = api.get_hf_file_metadata(url=hf_hub_url(repo, name))
        if found.size is None or found.size > largest:
            raise CheckpointError(f"{repo}: {name} has {found.size} bytes, expected at most {largest}")
        # Of the same commit; past the user's cache, which would stand in for a hub that does not answer.
        file = api.hf_hub_download(repo, name, revision=found.commit_hash, local_dir=folder)
        return Path(file).read_bytes(), str(found.commit_hash)


@contextmanager
def _asking(repo: str) -> Iterator[HfApi]:
    """A client, without output of its own; all that goes wrong with it is one of our errors."""
    try:
        from huggingface_hub import HfApi, errors
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{missing.name} is not installed: pip install 'rlpto[hub]'") from None
    if repo.count("/") != 1:
        raise ConfigError(f"{repo}: expected a repository as OWNER/NAME")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # retries
    disable_progress_bars()
    try:
        yield HfApi(library_name="rlpto", library_version=__version__)
    except RlptoError:
        raise
    except errors.HFValidationError as wrong:
        raise ConfigError(f"{repo}: {one_line(wrong)}, expected a repository as OWNER/NAME") from None
    except errors.HfHubHTTPError as refused:
        raise ConfigError(f"{repo}: {_reason(refused)}") from None
    except Exception as failed:  # of the HTTP client, whose classes differ between versions, or of the hub's storage
        here = isinstance(failed, OSError) and not isinstance(failed, ConnectionError)
        what = "a file here cannot be read or written" if here else "the hub gave no answer"
        raise ConfigError(f"{repo}: {what} ({one_line(failed)})") from None


def _reason(refused: Any) -> str:
    """Why a hub refuses, by the code of its answer."""
    code, error = refused.response.status_code, refused.response.headers.get("X-Error-Code")
    if error == "EntryNotFound":
        return "no agent is there, expected a repository that `rlpto hub push` has written"
    if error == "RepoNotFound" or code == 404:
        return "no such repository, or a private one that the token in HF_TOKEN may not read"
    if code in (401, 403):
        return f"not authorised ({code}), expected a token in HF_TOKEN that may do this"
    return f"the hub refused ({code}): {one_line(refused.server_message or refused)}"
