"""Turn a user's submission into a job in the database, if catalogue, role and quotas allow it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args

from rlpto.io.errors import ConfigError
from rlpto.service.settings import CatalogueProgram, ServiceSettings
from rlpto.service.web.errors import Problem, not_valid
from rlpto.service.web.schemas import LARGEST_NUMBER, LONGEST_ARGUMENT, ArrayBody, JobBody, ScriptBody
from rlpto.service.web.state import Service
from rlpto.store.code_files import unpack
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, Priority, Scalar, change_job, count_open, get_job, insert_job
from rlpto.store.program_keys import SCRIPTS
from rlpto.store.programs import all_programs, get_program
from rlpto.store.rows import insert
from rlpto.store.scripts import ScriptRow, compiled, get_script, imports_session, keep_script, script_row
from rlpto.store.status import PreviewRow, previews
from rlpto.store.users import User

NUMBER = "{i}"
"""Placeholder for the number of a job in an array."""
_LONGEST_NAME = 128
_MOST_NAMES = 10


def allowed_job(store: Store, settings: ServiceSettings, user: User, body: JobBody) -> JobRow:
    """Return the job that a request body asks for. Raises Problem if catalogue, role or quota forbid it."""
    program = get_program(store, body.program)
    if program is None or program.checked == "deleted":
        names = [row.name for row in all_programs(store) if row.takes_jobs]
        known = ", ".join([*names[:_MOST_NAMES], *(["..."] if len(names) > _MOST_NAMES else [])]) or "none"
        said = f"the catalogue has no program {body.program}: expected one of {known}"
        raise Problem(403, "program-not-allowed", said)
    if program.checked == "refused":
        raise Problem(403, "program-not-allowed", f"the program {body.program} cannot train: {program.problem}")
    entry = CatalogueProgram.model_validate(program.spec)
    most = body.gpus if body.max_gpus is None else body.max_gpus
    if not body.min_gpus <= body.gpus <= most:
        raise not_valid(f"expected min_gpus <= gpus <= max_gpus, got {body.min_gpus}, {body.gpus}, {most}")
    if most > entry.most_gpus:
        raise not_valid(f"{body.program} may have {entry.most_gpus} GPUs at most, got {most}")
    epochs = float(entry.program.epochs) if body.epochs is None else body.epochs
    if epochs > entry.most_epochs:
        raise not_valid(f"{body.program} may train for {entry.most_epochs:g} epochs at most, got {epochs:g}")
    usual = entry.program.batch_size
    if body.batch_size is not None and body.batch_size not in (*entry.batch_sizes, usual):
        known = ", ".join(map(str, sorted({*entry.batch_sizes, usual})))
        raise not_valid(f"batch_size: expected one of {known}, got {body.batch_size}")
    quota = user.gpus_held or settings.quotas.gpus_held
    if quota is not None and body.gpus > quota:
        raise Problem(403, "quota-exceeded", f"you may hold {quota} GPUs, the job asks for {body.gpus}")
    check_priority(settings, user, body.priority)
    for job in body.after:
        before = get_job(store, job)
        if before is None or not (user.sees_all or before.owner == user.name):
            raise not_valid(f"after: there is no job {job} of yours")
    asked = body.model_dump(exclude={"script"}) | _script(body, user, entry)
    name = body.name or (body.script.name if body.script else body.program)
    asked |= {"name": name, "options": _options(body, entry), "epochs": epochs, "max_gpus": most}
    return JobRow(owner=user.name, **asked)


def highest_priority(settings: ServiceSettings, user: User) -> Priority:
    """The highest priority class that a user may give to jobs."""
    return user.highest_priority or ("high" if user.sees_all else settings.quotas.highest_priority)


def check_priority(settings: ServiceSettings, user: User, priority: Priority) -> None:
    """Raise Problem for a class above the user's highest."""
    highest, order = highest_priority(settings, user), get_args(Priority)
    if order.index(priority) < order.index(highest):
        known = " or ".join(order[order.index(highest) :])
        raise Problem(403, "quota-exceeded", f"priority: you may not use class {priority}: expected {known}")


def allowed_priority(settings: ServiceSettings, user: User, priority: Priority) -> Priority:
    """The given class, or the user's highest class if that is lower."""
    return max(priority, highest_priority(settings, user), key=get_args(Priority).index)


def previews_for(store: Store, job: JobRow) -> list[PreviewRow]:
    """Return the hours and GPU-hours predicted for a job, by metric and number of GPUs; empty if none are predicted."""
    program = get_program(store, job.program)
    if program is None:
        return []
    share = job.epochs / CatalogueProgram.model_validate(program.spec).program.epochs
    rows = previews(store, job.program)
    return [replace(row, hours=row.hours * share, gpu_hours=row.gpu_hours * share) for row in rows]


def body_of(store: Store, job: JobRow) -> JobBody:
    """Return the request body that submits a job again, without `after`, because those jobs may be gone."""
    asked = {name: getattr(job, name) for name in JobBody.model_fields if name not in ("script", "after")}
    if job.script is not None and (kept := get_script(store, job.script)) is not None:
        files = {"name": kept.name, "source": kept.source, "files": kept.files}
        asked["script"] = {**files, "arguments": list(job.arguments), "samples": job.samples, "pip": list(job.pip)}
    return JobBody.model_validate(asked)


def bodies_of(array: ArrayBody) -> Iterator[JobBody]:
    """Yield a request body for each job of an array, with the job's number in its name."""
    body = array.job
    name = body.name or (body.script.name if body.script else body.program)
    for number in range(array.first, array.last + 1):
        end, script = f"[{number}]", body.script
        if script is not None:
            given = [argument.replace(NUMBER, str(number)) for argument in script.arguments]
            if long := next((text for text in given if len(text) > LONGEST_ARGUMENT), None):
                said = f"expected at most {LONGEST_ARGUMENT} characters, got {len(long)} in job {end}"
                raise not_valid(f"script.arguments: {said}")
            script = script.model_copy(update={"arguments": given})
        options = {key: _numbered(value, number) for key, value in body.options.items()}
        named = name[: _LONGEST_NAME - len(end)] + end
        yield body.model_copy(update={"name": named, "options": options, "script": script})


def _numbered(value: Scalar, number: int) -> Scalar:
    """Return an option's value with the job's number in place of `{i}`, as a number if the result reads as one."""
    if not isinstance(value, str) or NUMBER not in value:
        return value
    text = value.replace(NUMBER, str(number))
    for kind in (int, float):
        with suppress(ValueError):
            if abs(found := kind(text)) <= LARGEST_NUMBER:
                return found
    return text


def submission(
    service: Service, user: User, body: JobBody, key: str | None = None
) -> Callable[[Store], tuple[JobRow, bool]]:
    """Return a function that writes the job to a database and returns it, and whether it is new. If the user has
    already sent the same key and body, the function returns the existing job, even if it would not be allowed now. It
    raises Problem if the key was sent with another body, if a new job is not allowed, and if too many jobs are open."""
    settings, at = service.settings, service.now()
    digest = hashlib.sha256(json.dumps(body.model_dump(), sort_keys=True).encode()).hexdigest()
    job: JobRow | Problem
    try:
        job = allowed_job(service.store, settings, user, body)
    except Problem as problem:
        job = problem  # not raised if the body repeats a submission

    def write(store: Store) -> tuple[JobRow, bool]:
        query = "SELECT digest, job FROM idempotency WHERE user = ? AND key = ?"
        seen = None if key is None else store.row(query, (user.name, key))
        if seen is not None:
            before = get_job(store, seen[1])
            if seen[0] != digest or before is None:
                raise Problem(422, "key-reused", "this Idempotency-Key was used for another submission")
            return before, False
        if isinstance(job, Problem):
            raise job
        quota = user.jobs_queued or settings.quotas.jobs_queued
        if count_open(store, user.name) >= quota:
            said = f"at most {quota} of your jobs may wait or train; submit again when some are over"
            raise Problem(403, "quota-exceeded", said)
        if body.script is not None:
            keep_script(store, _row(body.script))
        row = insert_job(store, job, at)
        if row.waits_for:
            row = replace(row, reason=row.waits_for)
            change_job(store, row.id, at, reason=row.reason)
        add_event(store, "job", at, row.id, row.owner, {"state": row.state, "name": row.name})
        if key is not None:
            insert(store, "idempotency", user=user.name, key=key, digest=digest, job=row.id, at=at)
        return row, True

    return write


def _script(body: JobBody, user: User, entry: CatalogueProgram) -> dict[str, Any]:
    """Return the job's fields for a developer's script. Raises Problem if the user has another role, if only one of
    script and program expects the other, or if the script cannot train."""
    script, trains_scripts = body.script, entry.program.training == SCRIPTS
    if script is None:
        if trains_scripts:
            said = f"{body.program} trains by a script of yours: expected one, as in `rlpto submit FILE.py`"
            raise not_valid(f"script: {said}")
        return {}
    check_developer(user)
    if not trains_scripts:
        raise not_valid(f"script: {body.program} trains by no script: expected a program that does")
    if problem := _script_problem(script.source, script.name, script.files):
        raise not_valid(f"script: {problem}")
    return {"script": _row(script).digest, "arguments": script.arguments, "samples": script.samples, "pip": script.pip}


def check_developer(user: User) -> None:
    """Raise Problem for a user who may not submit code. Its text names the commands that add a developer."""
    if user.role != "developer":
        said = f"script: only the role developer may submit code, not {user.role}"
        add = "`rlpto user add NAME --role developer` prints a token, `export RLPTO_TOKEN=TOKEN` uses it"
        raise Problem(403, "role-needed", f"{said}: {'' if user.role == 'admin' else 'by an admin, '}{add}")


async def check_script_early(user: User, body: JobBody) -> None:
    """Check a script in a thread. The result is cached, so `allowed_job` does not block the event loop later."""
    if body.script is not None and user.role == "developer":
        await asyncio.to_thread(_script_problem, body.script.source, body.script.name, body.script.files)


@lru_cache(maxsize=16)
def _script_problem(source: str, name: str, files: str) -> str:
    """Return why a script cannot train; empty if no reason is found. The result is cached, because the jobs of an array
    share one script, which may be large."""
    try:
        compiled(source, name, ConfigError)
        modules = [content for path, content in unpack(files).items() if path.endswith(".py")] if files else []
    except ConfigError as wrong:
        return str(wrong)
    if any(map(imports_session, (source.encode(), *modules))):
        return ""
    return f"{name}: expected an elastic.session (docs/elastic.md): neither it nor its --files import rlpto.elastic"


def _row(script: ScriptBody) -> ScriptRow:
    return script_row(script.name, script.source, script.files)


def _options(body: JobBody, entry: CatalogueProgram) -> dict[str, Scalar]:
    """Return the user's options and the catalogue's defaults. Raises Problem for an unknown or invalid option."""
    options = entry.options.items()
    found = {name: option.checked(option.default) for name, option in options if option.default is not None}
    for name, value in body.options.items():
        if name not in entry.options:
            known = ", ".join(entry.options) or "none"
            raise not_valid(f"options.{name}: {body.program} lets users choose: {known}")
        try:
            found[name] = entry.options[name].checked(value)
        except ValueError as wrong:
            raise not_valid(f"options.{name}: {wrong}") from None
    return found
