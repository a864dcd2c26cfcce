from __future__ import annotations

from dataclasses import replace

from rlpto.service.books.database import Books
from rlpto.service.books.users import (
    add_token,
    add_user,
    all_users,
    change_user,
    get_user,
    last_expiry,
    revoke_token,
    token_hash,
    tokens_of,
    user_of_token,
    user_of_token_id,
)


def test_a_token_is_known_by_its_hash_alone(books: Books) -> None:
    add_user(books, "ann", "operator", 1.0)
    token, secret = add_token(books, "ann", "laptop", 2.0)
    known = user_of_token(books, secret, 3.0)
    assert known is not None
    assert (known[0].name, known[0].sees_all, known[1]) == ("ann", True, token)
    assert user_of_token(books, secret + "x", 3.0) is None
    stored = [str(value) for row in books.rows("SELECT * FROM tokens") for value in row]
    assert token_hash(secret) in stored
    assert not any(secret in value for value in stored)


def test_tokens_end_when_they_expire_or_are_revoked_or_their_user_is_disabled(books: Books) -> None:
    ann = add_user(books, "ann", "user", 1.0)
    short, short_secret = add_token(books, "ann", "", 1.0, expires=10.0)
    token, secret = add_token(books, "ann", "", 2.0)
    assert user_of_token(books, short_secret, 9.0) is not None
    assert user_of_token(books, short_secret, 10.0) is None
    assert [one.id for one in tokens_of(books, "ann", 9.0)] == [token.id, short.id]
    assert [one.id for one in tokens_of(books, "ann", 10.0)] == [token.id], "an expired one is none"
    assert not revoke_token(books, token.id, "bob", 2.0), "nobody ends another one's"
    change_user(books, replace(ann, disabled=True))
    assert user_of_token(books, secret, 2.0) is None
    assert user_of_token_id(books, token.id, 2.0) is None
    change_user(books, replace(ann, jobs_queued=3))
    assert user_of_token(books, secret, 2.0) is not None
    assert revoke_token(books, token.id, "ann", 2.0)
    assert user_of_token(books, secret, 3.0) is None
    assert (all_users(books), get_user(books, "ann")) == ([replace(ann, jobs_queued=3)], replace(ann, jobs_queued=3))


def test_a_session_ends_with_the_token_it_was_made_with(books: Books) -> None:
    add_user(books, "ann", "user", 1.0)
    for_ever, _ = add_token(books, "ann", "", 1.0)
    short, _ = add_token(books, "ann", "", 1.0, expires=10.0)
    session, secret = add_token(books, "ann", "browser", 1.0, expires=20.0, session_of=for_ever)
    bounded, _ = add_token(books, "ann", "browser", 1.0, expires=20.0, session_of=short)
    assert (session.kind, session.expires, bounded.expires) == ("session", 20.0, 10.0)
    assert [last_expiry(books, one) for one in (for_ever, short, session, bounded)] == [None, 10.0, None, 10.0]
    assert user_of_token(books, secret, 2.0) is not None
    assert revoke_token(books, for_ever.id, "ann", 2.0)
    assert user_of_token(books, secret, 2.0) is None
    assert [one.id for one in tokens_of(books, "ann", 2.0)] == [short.id, bounded.id]
