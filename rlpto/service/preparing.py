"""The first start of a service: its folder, its database, the programs of its settings, and an admin with a token."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rlpto.io.errors import ConfigError
from rlpto.service.settings import DATABASE, ServiceSettings
from rlpto.store.database import Store
from rlpto.store.programs import set_program
from rlpto.store.users import add_token, add_user, all_users, user_of_token

FIRST_ADMIN = "admin"
TOKEN_FILE = "admin-token"
BY_SETTINGS = "settings"
"""Who has changed what the settings say."""


def prepare(settings: ServiceSettings) -> bool:
    """Make what is missing; whether a token of the first admin was made. It stands in the folder's `admin-token`,
    readable by its owner alone.

    Raises ConfigError for a folder that cannot be written, StoreError for a database that cannot be read.
    """
    make_folder(settings.folder)
    store = Store(settings.database)
    try:
        for path in settings.folder.glob(f"{DATABASE}*"):
            path.chmod(0o600)
        for name, program in settings.programs.items():
            set_program(store, name, program.model_dump(mode="json"), BY_SETTINGS, time.time())
        return _make_admin_token(store, settings.folder / TOKEN_FILE)
    finally:
        store.close()


def make_folder(folder: Path) -> None:
    """Make the folder of a service, for its owner alone, as one that exists is made. Raises ConfigError if refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as refused:
        raise ConfigError(f"{folder}: cannot make a folder that only its owner can read: {refused.strerror}") from None


def _make_admin_token(store: Store, path: Path) -> bool:
    """Write a new token of the first admin to a file, unless the one there is still valid; whether it was made."""
    now = time.time()
    if path.exists():
        kept = path.read_text(encoding="ascii", errors="replace").strip()
        found = user_of_token(store, kept, now)
        if found is not None and found[0].role == "admin":
            return False
    with store.transaction():
        if not any(user.name == FIRST_ADMIN for user in all_users(store)):
            add_user(store, FIRST_ADMIN, "admin", now)
        _, secret = add_token(store, FIRST_ADMIN, "made by rlpto serve", now)
    unfinished = path.with_name(f".{path.name}.part")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secret + "\n")
    unfinished.replace(path)
    return True
