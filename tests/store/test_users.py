from dataclasses import replace

from rlpto.store.database import Store
from rlpto.store.users import (
    add_token,
    add_user,
    change_user,
    revoke_token,
    token_hash,
    tokens_of,
    user_of_token,
    user_of_token_id,
)


def test_a_token_is_known_by_its_hash_alone(store: Store) -> None:
    add_user(store, "ann", "operator", 1.0)
    token, secret = add_token(store, "ann", "laptop", 2.0)
    known = user_of_token(store, secret, 3.0)
    assert (known[0].name, known[0].sees_all, known[1]) == ("ann", True, token)
    stored = [str(value) for row in store.rows("SELECT * FROM tokens") for value in row]
    assert token_hash(secret) in stored
    assert not any(secret in value for value in stored)


def test_tokens_end_when_they_expire_or_are_revoked_or_their_user_is_disabled(store: Store) -> None:
    ann = add_user(store, "ann", "user", 1.0)
    short, short_secret = add_token(store, "ann", "", 1.0, expires=10.0)
    token, secret = add_token(store, "ann", "", 2.0)
    assert user_of_token(store, short_secret, 10.0) is None
    assert [one.id for one in tokens_of(store, "ann", 9.0)] == [token.id, short.id]
    assert [one.id for one in tokens_of(store, "ann", 10.0)] == [token.id], "an expired one is none"
    assert not revoke_token(store, token.id, "bob", 2.0), "nobody ends another one's"
    change_user(store, replace(ann, disabled=True))
    assert user_of_token(store, secret, 2.0) is None
    assert user_of_token_id(store, token.id, 2.0) is None
    change_user(store, replace(ann, jobs_queued=3))
    assert user_of_token(store, secret, 2.0) is not None
    assert revoke_token(store, token.id, "ann", 2.0)
    assert user_of_token(store, secret, 3.0) is None
