"""Users with their roles and quotas, their tokens, and the audit trail of their changes."""

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
    """A user. gpus_held, jobs_queued: quotas of this user. highest_priority: highest priority class for their jobs. If
    one of these is None, the settings apply. sign_in: value that identifies the user in single sign-on, or None."""

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
        """Whether jobs of other users are shown."""
        return self.role in ("operator", "admin")


@dataclass(frozen=True)
class Token(Row):
    """A token without its secret, of which only the SHA-256 is kept. expires: time of expiry [s]. Default: never.

    made_with: for a browser session, id of the token used to sign in; the session ends with this token.
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
    """A change made by a user. action: e.g. `policy.switch`. target: the changed object."""

    TABLE = "audit"

    seq: int
    at: float
    by: str
    action: str
    target: str
    detail: Mapping[str, Any]


def add_user(store: Store, name: str, role: Role, at: float, sign_in: str | None = None) -> User:
    """Add a user without quotas of its own."""
    insert(store, "users", name=name, role=role, created=at, sign_in=sign_in)
    return User(name, role, at, False, None, None, sign_in=sign_in)


def change_user(store: Store, user: User) -> None:
    """Store all fields of an existing user except name and creation time."""
    names = ("role", "disabled", "gpus_held", "jobs_queued", "highest_priority", "sign_in")
    sets = ", ".join(f"{name} = ?" for name in names)
    store.write(f"UPDATE users SET {sets} WHERE name = ?", (*(getattr(user, name) for name in names), user.name))


def get_user(store: Store, name: str) -> User | None:
    """The user with a name, disabled or not."""
    return first(store, User, "WHERE name = ?", (name,))


def user_of_sign_in(store: Store, sign_in: str) -> User | None:
    """The user identified by a single sign-on value, disabled or not."""
    return first(store, User, "WHERE sign_in = ?", (sign_in,))


def sign_in_key(value: str) -> str:
    """Normalise a single sign-on value: e-mail addresses become lower case, since case is irrelevant there."""
    return value.lower() if "@" in value else value


def has_admin(store: Store) -> bool:
    """Whether an enabled admin remains."""
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
    """Add a token. Returns it with its secret, which cannot be read later. made_with: token with which a browser signs
    in; the session expires no later than this token. A session without it comes from single sign-on."""
    if made_with is not None and made_with.expires is not None:
        expires = made_with.expires if expires is None else min(expires, made_with.expires)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    token = Token(secrets.token_hex(6), user, label, kind, at, expires, None, made_with.id if made_with else None)
    insert(store, "tokens", **asdict(token), hash=token_hash(secret))
    return token, secret


def token_hash(secret: str) -> str:
    """SHA-256 of a token in hex. Tokens have 256 random bits, hence no salt is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def user_of_token(store: Store, secret: str, at: float) -> tuple[User, Token] | None:
    """User and token of a secret at a time; None if it is unknown, revoked or expired, or its user is disabled."""
    return _holder(store, "hash", token_hash(secret), at)


def user_of_token_id(store: Store, token: str, at: float) -> tuple[User, Token] | None:
    """User and token of a token id, for repeated checks during a long answer that its reader may still read."""
    return _holder(store, "id", token, at)


def tokens_of(store: Store, user: str, at: float) -> list[Token]:
    """Tokens and sessions of a user that can be used at a time, newest first."""
    return find(store, Token, f"WHERE user = ? AND {_LIVE} ORDER BY created DESC", (user, at))


def last_expiry(store: Store, token: Token) -> float | None:
    """When a token made with `token` must end [s]; None if never. For a session, the token used to sign in counts."""
    origin = None if token.made_with is None else first(store, Token, "WHERE id = ?", (token.made_with,))
    return (origin or token).expires


def revoke_token(store: Store, token: str, user: str, at: float) -> bool:
    """Revoke a token of a user and all sessions made with it. False if the id is unknown."""
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
    """Changes, newest first. before: exclusive upper bound of their number."""
    return find(store, AuditRow, "WHERE ? IS NULL OR seq < ? ORDER BY seq DESC LIMIT ?", (before, before, limit))
