"""The Hugging Face hub, from a machine that may not reach it: the cache first, then one short question."""

from __future__ import annotations

import difflib
import functools
import os
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from workbench.core.errors import InputError, MissingResource
from workbench.models import catalog

REACH_SECONDS = 4.0
_ASK_AGAIN_SECONDS = 60.0
Result = TypeVar("Result")


class NoSuchRepository(InputError):
    """The hub has no repository of that name."""


def switched_off() -> bool:
    """Whether ``HF_HUB_OFFLINE`` (or ``TRANSFORMERS_OFFLINE``) forbids asking the hub."""
    from huggingface_hub import constants

    # The library reads the variable once, at import; a notebook may set it later.
    now = os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")
    return bool(constants.HF_HUB_OFFLINE) or now


def obstacle() -> str | None:
    """Return why the hub cannot be reached, in words; None if it answers. Takes at most a few seconds.

    The hub's own client retries for 20 to 50 seconds before it fails.
    """
    from huggingface_hub import constants

    if switched_off():
        return "not asked (HF_HUB_OFFLINE is set)"
    # The answer is kept for a minute: a catalogue of ten models should not wait ten times.
    return _obstacle_of(constants.ENDPOINT, int(time.monotonic() // _ASK_AGAIN_SECONDS))


@functools.lru_cache(maxsize=4)
def _obstacle_of(endpoint: str, minute: int) -> str | None:
    outcome: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(
                urllib.request.Request(endpoint, method="HEAD"), timeout=REACH_SECONDS
            ).close()
            outcome.append(None)
        except urllib.error.HTTPError as error:
            # A refusal of the front page says nothing about a repository; a broken server does.
            outcome.append(f"it answered {error.code}" if error.code >= 500 else None)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            # The hub's client brings its own certificates, so only it can judge those.
            outcome.append(
                None if isinstance(reason, ssl.SSLError) else str(getattr(reason, "strerror", reason))
            )

    # In a thread, because looking up a name ignores the timeout.
    question = threading.Thread(target=ask, daemon=True)
    question.start()
    question.join(REACH_SECONDS + 1)
    problem = outcome[0] if outcome else f"no answer in {REACH_SECONDS:.0f} s"
    return None if problem is None else f"not reached ({endpoint}: {problem})"


def cache_folder() -> str:
    """Return the folder of the hub's cached files; ``HF_HOME`` moves it."""
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


def cached_repos(kind: str = "model") -> list[str]:
    """Names of the cached repositories of one kind ("model", "dataset"), sorted; empty without a cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == kind)
    except CacheNotFound:
        return []


def cached_file(
    repo: str, names: Iterable[str], kind: str = "model", revision: str | None = None
) -> str | None:
    """Path of the first of `names` that is cached for `repo`; None if none is."""
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        path = try_to_load_from_cache(repo, name, repo_type=kind, revision=revision)
        if isinstance(path, str):
            return path
    return None


def from_cache_or_hub(what: str, repo: str, fetch: Callable[[bool], Result]) -> Result:
    """``fetch(local_files_only)`` on the cache, then on the hub if it answers.

    Raises MissingResource if neither has it because the hub cannot be reached or fails; NoSuchRepository if
    the hub has none of that name. Other errors of `fetch` pass through.
    """
    try:
        return fetch(True)
    except OSError as error:
        problem = obstacle()
        if problem is not None:
            raise missing(what, repo, problem) from error
    return download(what, repo, lambda: fetch(False))


def ask(what: str, repo: str) -> None:
    """Ask the hub whether it has a model; raises what `download` raises."""
    from huggingface_hub import HfApi

    download(what, repo, lambda: HfApi().model_info(repo, timeout=REACH_SECONDS))


def download(what: str, repo: str, fetch: Callable[[], Result]) -> Result:
    """``fetch()``, with the hub's refusals as they are: no such repository, no access, no answer."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    # A lost connection comes as the HTTP library's own error, which is the base of the hub's.
    bases = [base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)]
    network_errors: tuple[type[Exception], ...] = (OSError, *bases)
    try:
        return fetch()
    except network_errors as error:
        for cause in _causes(error):
            if isinstance(cause, GatedRepoError):
                raise MissingResource(
                    f"{what} is gated: accept its terms at {_page(repo)} and run `hf auth login`"
                ) from error
            if isinstance(cause, RepositoryNotFoundError):
                raise NoSuchRepository(
                    f"{what}: the hub has no repository {repo}, or not for you "
                    f"(`hf auth login` opens private ones){_near(repo)}"
                ) from error
            if isinstance(cause, (HfHubHTTPError, LocalEntryNotFoundError)):
                reason = str(cause).partition("\n")[0]
                raise MissingResource(f"{what}: the hub did not give {repo} ({reason})") from error
        if isinstance(error, OSError):
            raise
        raise MissingResource(f"{what}: the connection to the hub was lost ({error})") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _near(repo: str) -> str:
    names = {entry.spec.partition(":")[2] for entry in catalog.CATALOG} - {repo}
    near = difflib.get_close_matches(repo, names, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _page(repo: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}"


def missing(
    what: str, repo: str, problem: str, kind: str = "model", random_weights: bool = True
) -> MissingResource:
    """Return the error for a file that is neither cached nor on the hub: attempt, cached repositories, remedies."""
    repos = cached_repos(kind)
    listed = ", ".join(repos[:6]) + (f" and {len(repos) - 6} more" if len(repos) > 6 else "")
    remedies = ["connect this machine and load it once", "set HF_HOME to a cache that holds it"]
    if kind == "model":
        remedies.append("give a local folder as hf:FOLDER")
    if random_weights and what == f"hf:{repo}" and not cached_file(repo, ["config.json"]):
        remedies.append(
            "for random weights, save its config.json and tokenizer into a folder: hf:FOLDER with pretrained=False"
        )
    elif random_weights:
        remedies.append("pass pretrained=False for the architecture with random weights")
    folder = "a folder of that name; " if what == f"hf:{repo}" else ""
    return MissingResource(
        f"{what} is not on this machine.\n"
        f"  tried: {folder}the cache {cache_folder()} for {repo}; the hub, which was {problem}\n"
        f"  cached {kind}s: {listed or 'none'}\n"
        f"  what helps: {'; '.join(remedies)}"
    )
