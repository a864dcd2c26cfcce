"""Users with their roles and quotas, and the tokens by which they are known."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Literal

from rlpto.store.database import Store

Role = Literal["user", "developer", "operator", "admin"]
TokenKind = Literal["token", "session"]
TOKEN_PREFIX = "rlpto_"
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class User:
    """Who may do what. gpus_held, jobs_queued: quotas of this user; None: those of the settings."""

    name: str
    role: Role
    created: float
    disabled: bool
    gpus_held: int | None
    jobs_queued: int | None

    @property
    def sees_all(self) -> bool:
        """Whether other people's jobs are shown, too."""
        return self.role in ("operator", "admin")


@dataclass(frozen=True)
class Token:
    """A token without its secret, of which the database has the SHA-256 alone. expires: None: never."""

    id: str
    user: str
    label: str
    kind: TokenKind
    created: float
    expires: float | None
    revoked: float | None


_USER = "users.name, users.role, users.created, users.disabled, users.gpus_held, users.jobs_queued"
_TOKEN = "id, user, label, kind, created, expires, revoked"


def add_user(store: Store, name: str, role: Role, at: float) -> User:
    """A new user without quotas of its own."""
    store.insert("INSERT INTO users (name, role, created) VALUES (?, ?, ?)", (name, role, at))
    return User(name, role, at, False, None, None)


def change_user(store: Store, user: User) -> None:
    """Keep role, quotas and `disabled` of a user that is there."""
    values = (user.role, user.disabled, user.gpus_held, user.jobs_queued, user.name)
    store.write("UPDATE users SET role = ?, disabled = ?, gpus_held = ?, jobs_queued = ? WHERE name = ?", values)


def get_user(store: Store, name: str) -> User | None:
    """The user of a name, disabled or not."""
    row = store.row(f"SELECT {_USER} FROM users WHERE name = ?", (name,))
    return None if row is None else _user(tuple(row))


def all_users(store: Store) -> list[User]:
    """Everybody, by name."""
    return [_user(tuple(row)) for row in store.rows(f"SELECT {_USER} FROM users ORDER BY name")]


def add_token(
    store: Store, user: str, label: str, at: float, *, kind: TokenKind = "token", expires: float | None = None
) -> tuple[Token, str]:
    """A new token, and its secret, which nobody can tell later."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    token = Token(secrets.token_hex(6), user, label, kind, at, expires, None)
    store.insert(
        "INSERT INTO tokens (id, user, hash, label, kind, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (token.id, user, token_hash(secret), label, kind, at, expires),
    )
    return token, secret


def token_hash(secret: str) -> str:
    """SHA-256 of a token in hex. Tokens have 256 random bits, so that no salt is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def user_of_token(store: Store, secret: str, at: float) -> tuple[User, Token] | None:
    """Who holds a token at a time; None if it is unknown, revoked, expired, or its user disabled."""
    row = store.row(
        f"SELECT {_USER}, {', '.join(f'tokens.{name}' for name in _TOKEN.split(', '))} "
        "FROM tokens JOIN users ON users.name = tokens.user WHERE tokens.hash = ? "
        "AND tokens.revoked IS NULL AND (tokens.expires IS NULL OR tokens.expires > ?) AND users.disabled = 0",
        (token_hash(secret), at),
    )
    return None if row is None else (_user(tuple(row)[:6]), Token(*tuple(row)[6:]))


def tokens_of(store: Store, user: str, kind: TokenKind = "token") -> list[Token]:
    """The tokens of a user that are not revoked, newest first."""
    found = store.rows(
        f"SELECT {_TOKEN} FROM tokens WHERE user = ? AND kind = ? AND revoked IS NULL ORDER BY created DESC",
        (user, kind),
    )
    return [Token(*row) for row in found]


def revoke_token(store: Store, token: str, user: str, at: float) -> bool:
    """End a token of a user; False if there is none of that id."""
    changed = store.write(
        "UPDATE tokens SET revoked = ? WHERE id = ? AND user = ? AND revoked IS NULL", (at, token, user)
    )
    return changed > 0


def _user(row: tuple[str, Role, float, int, int | None, int | None]) -> User:
    name, role, created, disabled, gpus_held, jobs_queued = row
    return User(name, role, created, bool(disabled), gpus_held, jobs_queued)
