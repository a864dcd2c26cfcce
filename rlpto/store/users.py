"""Users with their roles and quotas, the tokens by which they are known, and what they have changed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.jobs import Priority
from rlpto.store.rows import Row, find, first, insert

Role = Literal["user", "developer", "operator", "admin"]
TokenKind = Literal["token", "session"]
TOKEN_PREFIX = "rlpto_"
_TOKEN_BYTES = 32
_LIVE = "revoked IS NULL AND (expires IS NULL OR expires > ?)"


@dataclass(frozen=True)
class User(Row):
    """Who may do what. gpus_held, jobs_queued: quotas of this user; highest_priority: class above which their jobs may
    not be; None: those of the settings. sign_in: value by which single sign-on knows the user; None: none."""

    TABLE = "users"

    name: str
    role: Role
    created: float
    disabled: bool
    gpus_held: int | None
    jobs_queued: int | None
    highest_priority: Priority | None = None
    sign_in: str | None = None

    @property
    def sees_all(self) -> bool:
        """Whether other people's jobs are shown, too."""
        return self.role in ("operator", "admin")


@dataclass(frozen=True)
class Token(Row):
    """A token without its secret, whose SHA-256 alone is kept. expires: s; None: never.

    made_with: of a browser's session the id of the token that it was made with, and with which it ends.
    """

    TABLE = "tokens"

    id: str
    user: str
    label: str
    kind: TokenKind
    created: float
    expires: float | None
    revoked: float | None
    made_with: str | None = None


@dataclass(frozen=True)
class AuditRow(Row):
    """A change that a user has made. action: such as `policy.switch`; target: what was changed."""

    TABLE = "audit"

    seq: int
    at: float
    by: str
    action: str
    target: str
    detail: Mapping[str, Any]


def add_user(store: Store, name: str, role: Role, at: float, sign_in: str | None = None) -> User:
    """A new user without quotas of its own."""
    insert(store, "users", name=name, role=role, created=at, sign_in=sign_in)
    return User(name, role, at, False, None, None, sign_in=sign_in)


def change_user(store: Store, user: User) -> None:
    """Keep everything but name and time of a user that is there."""
    names = ("role", "disabled", "gpus_held", "jobs_queued", "highest_priority", "sign_in")
    sets = ", ".join(f"{name} = ?" for name in names)
    store.write(f"UPDATE users SET {sets} WHERE name = ?", (*(getattr(user, name) for name in names), user.name))


def get_user(store: Store, name: str) -> User | None:
    """The user of a name, disabled or not."""
    return first(store, User, "WHERE name = ?", (name,))


def user_of_sign_in(store: Store, sign_in: str) -> User | None:
    """The user whom single sign-on knows by a value, disabled or not."""
    return first(store, User, "WHERE sign_in = ?", (sign_in,))


def sign_in_key(value: str) -> str:
    """A value of single sign-on as it is kept: letters of addresses are small, since their case means nothing."""
    return value.lower() if "@" in value else value


def has_admin(store: Store) -> bool:
    """Whether a user is left who may do everything."""
    return any(one.role == "admin" and not one.disabled for one in all_users(store))


def all_users(store: Store) -> list[User]:
    """All users by name."""
    return find(store, User, "ORDER BY name")


def add_token(
    store: Store,
    user: str,
    label: str,
    at: float,
    *,
    expires: float | None = None,
    kind: TokenKind = "token",
    made_with: Token | None = None,
) -> tuple[Token, str]:
    """A new token, and its secret, which cannot be read later. made_with: the token that a browser signs in with; its
    session expires no later than it. A session without one is of single sign-on."""
    if made_with is not None and made_with.expires is not None:
        expires = made_with.expires if expires is None else min(expires, made_with.expires)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    token = Token(secrets.token_hex(6), user, label, kind, at, expires, None, made_with.id if made_with else None)
    insert(store, "tokens", **asdict(token), hash=token_hash(secret))
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
    return find(store, Token, f"WHERE user = ? AND {_LIVE} ORDER BY created DESC", (user, at))


def last_expiry(store: Store, token: Token) -> float | None:
    """When [s] a token that is made with `token` must end; None: never. For a session that of its own token counts."""
    origin = None if token.made_with is None else first(store, Token, "WHERE id = ?", (token.made_with,))
    return (origin or token).expires


def revoke_token(store: Store, token: str, user: str, at: float) -> bool:
    """End a token of a user and all sessions that were made with it; False for an unknown id."""
    with store.transaction():
        revoke = "UPDATE tokens SET revoked = ? WHERE revoked IS NULL AND"
        found = store.write(f"{revoke} id = ? AND user = ?", (at, token, user)).rowcount
        store.write(f"{revoke} made_with = ?", (at, token))
    return found > 0


def _holder(store: Store, column: str, value: str, at: float) -> tuple[User, Token] | None:
    token = first(store, Token, f"WHERE {column} = ? AND {_LIVE}", (value, at))
    user = None if token is None else get_user(store, token.user)
    return None if token is None or user is None or user.disabled else (user, token)


def note_change(
    store: Store, by: str, action: str, target: str, at: float, detail: Mapping[str, Any] | None = None
) -> None:
    """Note a change in the audit trail."""
    insert(store, "audit", at=at, by=by, action=action, target=target, detail=detail or {})


def audit_trail(store: Store, before: int | None = None, limit: int = 50) -> list[AuditRow]:
    """Changes, newest first. before: the number they come before."""
    return find(store, AuditRow, "WHERE ? IS NULL OR seq < ? ORDER BY seq DESC LIMIT ?", (before, before, limit))
