"""Routes for admins: users with their tokens, programs, and the audit trail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import APIRouter

from rlpto.service.settings import CatalogueProgram, OptionSettings
from rlpto.service.web.access import AnAdmin, TheCaller
from rlpto.service.web.errors import Problem, not_found, not_valid
from rlpto.service.web.routes.account import NewToken, Tokens, end_token_of, new_token, with_quotas
from rlpto.service.web.schemas import Cursor, Limit, NameInPath, TokenBody, UserBody, UserChange
from rlpto.service.web.state import Service, TheService
from rlpto.store import programs, users
from rlpto.store.database import Store
from rlpto.store.program_keys import SCRIPTS
from rlpto.store.rows import put
from rlpto.store.status import PreviewRow, previews

router = APIRouter(tags=["admin"])
_LARGEST_PROGRAM = 16_384


@dataclass(frozen=True)
class AuditTrail:
    """Changes, newest first. next: cursor of the next page, null on the last one."""

    audit: list[users.AuditRow]
    next: str | None


@dataclass(frozen=True)
class ProgramAnswer:
    """A program that may be trained, with the choices of users. scripts: whether it trains developers' scripts.
    preview: full trainings of it, alone."""

    name: str
    description: str
    scripts: bool
    options: Mapping[str, OptionSettings]
    batch_size: int
    batch_sizes: list[int]
    epochs: float
    most_epochs: float
    most_gpus: int
    checked: programs.Checked
    problem: str
    preview: list[PreviewRow]


@router.get("/users")
async def all_users(_: AnAdmin, service: TheService) -> dict[Literal["users"], list[users.User]]:
    """All users."""
    return {"users": [with_quotas(service, user) for user in users.all_users(service.store)]}


@router.post("/users", status_code=201)
async def add_user(body: UserBody, caller: AnAdmin, service: TheService) -> users.User:
    """Add a user, who then needs a token."""
    at = service.now()

    def write(store: Store) -> users.User:
        if users.get_user(store, body.name) is not None:
            said = f"there is a user {body.name} already: `rlpto user token {body.name}` prints a token"
            raise Problem(409, "name-taken", said)
        _check_sign_in(store, body.sign_in)
        detail = body.model_dump(exclude_none=True, exclude={"name"})
        users.note_change(store, caller.name, "user.add", body.name, at, detail)
        return users.add_user(store, body.name, body.role, at, body.sign_in)

    return with_quotas(service, await service.commit(write))


@router.patch("/users/{name}")
async def change_user(name: NameInPath, body: UserChange, caller: AnAdmin, service: TheService) -> users.User:
    """Change role, quotas or single sign-on of a user, or disable them."""
    changes = body.model_dump(exclude_unset=True)

    def write(store: Store) -> users.User:
        user = _user(store, name)
        if body.sign_in != user.sign_in:
            _check_sign_in(store, body.sign_in)
        changed = replace(user, **changes)
        users.change_user(store, changed)
        if not users.has_admin(store):
            raise Problem(409, "last-admin", "this would leave no admin")
        users.note_change(store, caller.name, "user.change", name, service.now(), changes)
        return changed

    return with_quotas(service, await service.commit(write))


def _check_sign_in(store: Store, sign_in: str | None) -> None:
    """Raise Problem 409 if a single sign-on value already identifies another user."""
    if sign_in and (taken := users.user_of_sign_in(store, sign_in)) is not None:
        raise Problem(409, "name-taken", f"sign_in: that is {taken.name} already")


@router.get("/users/{name}/tokens")
async def tokens(name: NameInPath, _: AnAdmin, service: TheService) -> Tokens:
    """Tokens and sessions of a user."""
    return {"tokens": users.tokens_of(service.store, _user(service.store, name).name, service.now())}


@router.post("/users/{name}/tokens", status_code=201)
async def make_token(name: NameInPath, body: TokenBody, caller: AnAdmin, service: TheService) -> NewToken:
    """Make a token for a user."""
    return await new_token(service, caller, _user(service.store, name).name, body)


@router.delete("/users/{name}/tokens/{token}", status_code=204)
async def end_token(name: NameInPath, token: NameInPath, caller: AnAdmin, service: TheService) -> None:
    """End a token of a user with the sessions made with it, or one session."""
    await end_token_of(service, caller, name, token)


def _user(store: Store, name: str) -> users.User:
    """The user with a name. Raises Problem 404 if there is none."""
    if (user := users.get_user(store, name)) is None:
        raise not_found("user")
    return user


@router.get("/programs")
async def all_programs(caller: TheCaller, service: TheService) -> dict[Literal["programs"], list[ProgramAnswer]]:
    """Programs that may be trained, the choices of users, and durations of trainings."""
    return {"programs": program_answers(service, all_of_them=caller.user.role == "admin")}


def program_answers(service: Service, all_of_them: bool) -> list[ProgramAnswer]:
    """The catalogue. all_of_them: include programs that were refused or deleted."""
    rows = programs.all_programs(service.store)
    return [_answer(service.store, row) for row in rows if all_of_them or row.takes_jobs]


@router.put("/programs/{name}")
async def set_program(name: NameInPath, body: CatalogueProgram, caller: AnAdmin, service: TheService) -> ProgramAnswer:
    """Add a program to the catalogue, or replace it. Its jobs wait until the scheduler has imported its class."""
    spec = body.model_dump(mode="json", exclude_unset=True)
    if len(json.dumps(spec)) > _LARGEST_PROGRAM:
        raise not_valid(f"expected a program of at most {_LARGEST_PROGRAM} characters")

    def write(store: Store) -> ProgramAnswer:
        programs.set_programs(store, {name: spec})
        users.note_change(store, caller.name, "program.set", name, service.now(), {"training": body.program.training})
        return _answer(store, _program(store, name))

    return await service.commit(write)


@router.delete("/programs/{name}", status_code=204)
async def delete_program(name: NameInPath, caller: AnAdmin, service: TheService) -> None:
    """Refuse new jobs of a program; existing jobs continue."""

    def write(store: Store) -> None:
        put(store, [replace(_program(store, name), checked="deleted", problem="")])
        users.note_change(store, caller.name, "program.delete", name, service.now())

    await service.commit(write)


def _program(store: Store, name: str) -> programs.ProgramRow:
    """The program with a name. Raises Problem 404 if there is none."""
    if (row := programs.get_program(store, name)) is None:
        raise not_found("program")
    return row


def _answer(store: Store, row: programs.ProgramRow) -> ProgramAnswer:
    entry = CatalogueProgram.model_validate(row.spec)
    return ProgramAnswer(
        name=row.name,
        description=entry.description,
        scripts=entry.program.training == SCRIPTS,
        options=entry.options,
        batch_size=entry.program.batch_size,
        batch_sizes=list(entry.batch_sizes),
        epochs=entry.program.epochs,
        most_epochs=entry.most_epochs,
        most_gpus=entry.most_gpus,
        checked=row.checked,
        problem=row.problem,
        preview=previews(store, row.name),
    )


@router.get("/audit")
async def audit_trail(_: AnAdmin, service: TheService, limit: Limit = 50, cursor: Cursor = None) -> AuditTrail:
    """The audit trail: changes with their users, newest first."""
    found = users.audit_trail(service.store, None if cursor is None else int(cursor), limit + 1)
    return AuditTrail(found[:limit], str(found[limit - 1].seq) if len(found) > limit else None)
