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
    """A token without its secret, whose SHA-256 alone is kept. expires: s; None: never.

    made_with: of a browser's session the id of the token that it was made with, and with which it ends.
    """

    id: str
    user: str
    label: str
    kind: TokenKind
    created: float
    expires: float | None
    revoked: float | None
    made_with: str | None = None


_USER = "users.name, users.role, users.created, users.disabled, users.gpus_held, users.jobs_queued"
_TOKEN = "id, user, label, kind, created, expires, revoked, made_with"
_LIVE = "tokens.revoked IS NULL AND (tokens.expires IS NULL OR tokens.expires > ?)"


def over_quota(gpus: int, quota: int | None) -> bool:
    """Whether a job that asks for so many GPUs can never start, because its owner may hold fewer. quota: None: any."""
    return quota is not None and gpus > quota


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
    store: Store, user: str, label: str, at: float, *, expires: float | None = None, session_of: Token | None = None
) -> tuple[Token, str]:
    """A new token, and its secret, which cannot be read later. session_of: the token that a browser signs in with; the
    new one is its session, and expires no later than it."""
    kind: TokenKind = "token"
    if session_of is not None:
        kind, expires = "session", min((one for one in (expires, session_of.expires) if one is not None), default=None)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    made_with = None if session_of is None else session_of.id
    token = Token(secrets.token_hex(6), user, label, kind, at, expires, None, made_with)
    store.insert(
        f"INSERT INTO tokens ({_TOKEN}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*(getattr(token, name) for name in _TOKEN.split(", ")), token_hash(secret)),
    )
    return token, secret


def token_hash(secret: str) -> str:
    """SHA-256 of a token in hex. Tokens have 256 random bits, so that no salt is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def user_of_token(store: Store, secret: str, at: float) -> tuple[User, Token] | None:
    """The user of a token at a time; None if it is unknown, revoked, expired, or its user disabled."""
    return _holder(store, "hash", token_hash(secret), at)


def user_of_token_id(store: Store, token: str, at: float) -> tuple[User, Token] | None:
    """The same for a token that was seen before: a long answer checks with it whether its reader may still read."""
    return _holder(store, "id", token, at)


def tokens_of(store: Store, user: str, at: float) -> list[Token]:
    """Tokens and sessions of a user that can be used at a time, newest first."""
    query = f"SELECT {_TOKEN} FROM tokens WHERE user = ? AND {_LIVE} ORDER BY created DESC"
    return [Token(*row) for row in store.rows(query, (user, at))]


def last_expiry(store: Store, token: Token) -> float | None:
    """When [s] a token that is made with `token` must end; None: never. For a session that of its own token counts."""
    if token.made_with is None:
        return token.expires
    row = store.row("SELECT expires FROM tokens WHERE id = ?", (token.made_with,))
    return token.expires if row is None else row[0]


def revoke_token(store: Store, token: str, user: str, at: float) -> bool:
    """End a token of a user and all sessions that were made with it; False if there is none of that id."""
    with store.transaction():
        changed = store.write(
            "UPDATE tokens SET revoked = ? WHERE id = ? AND user = ? AND revoked IS NULL", (at, token, user)
        )
        store.write("UPDATE tokens SET revoked = ? WHERE made_with = ? AND revoked IS NULL", (at, token))
    return changed > 0


def _holder(store: Store, column: str, value: str, at: float) -> tuple[User, Token] | None:
    row = store.row(
        f"SELECT {_USER}, {', '.join(f'tokens.{name}' for name in _TOKEN.split(', '))} "
        f"FROM tokens JOIN users ON users.name = tokens.user WHERE tokens.{column} = ? AND {_LIVE} "
        "AND users.disabled = 0",
        (value, at),
    )
    return None if row is None else (_user(tuple(row)[:6]), Token(*tuple(row)[6:]))


def _user(row: tuple[str, Role, float, int, int | None, int | None]) -> User:
    name, role, created, disabled, gpus_held, jobs_queued = row
    return User(name, role, created, bool(disabled), gpus_held, jobs_queued)
