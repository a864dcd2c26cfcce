"""Messages when jobs end: to another program, such as a chat, as JSON; and to their owners by e-mail."""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fastapi.encoders import jsonable_encoder

from rlpto.service.settings import EmailSettings, WebSettings
from rlpto.service.web.state import EventNotifier, GroupCommit
from rlpto.store.database import Store, StoreError
from rlpto.store.events import Event, events_after, last_event
from rlpto.store.jobs import ENDED, JobRow, get_job
from rlpto.store.users import User, get_user

TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
"""Time between two attempts, doubled each time."""
_LOOK_S = 60.0
_AGAIN = (408, 429)
_LOG = logging.getLogger("rlpto.service")


@dataclass(frozen=True)
class Channel:
    """Where messages go. name: key of the fact with the number of the newest event that was delivered, or need not be.
    place: host, for the log. send: sends the message of a job's end to a program, or to the owner if they want it; its
    key is the same at each attempt. It raises OSError or HTTPException if the message has not arrived."""

    name: str
    place: str
    send: Callable[[JobRow, User | None, str], None]


def webhook(url: str) -> Channel:
    """Posts to an address, which may hold a secret, so only its host is logged."""

    def send(row: JobRow, _: User | None, key: str) -> None:
        body = json.dumps({"text": _text(row), "job": jsonable_encoder(row)}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        with urlopen(Request(url, body, headers, method="POST"), timeout=TIMEOUT_S) as answer:
            answer.read(1)

    return Channel("webhook", urlsplit(url).netloc.rpartition("@")[2], send)


def mail(settings: EmailSettings, password: str) -> Channel:
    """Writes to the owner of a job. password: empty: the server asks for none."""

    def send(row: JobRow, owner: User | None, key: str) -> None:
        if owner is None or owner.disabled or not owner.email:
            return
        letter = EmailMessage()
        letter["From"], letter["To"], letter["Subject"] = settings.sender, owner.email, f"{row.name} {row.state}"
        letter["Date"], letter["Message-ID"] = formatdate(row.ended), f"<{key}@{settings.sender.partition('@')[2]}>"
        letter["Auto-Submitted"] = "auto-generated"
        letter.set_content(_text(row))
        with smtplib.SMTP(settings.host, settings.port, timeout=TIMEOUT_S) as server:
            if settings.starttls:
                server.starttls(context=ssl.create_default_context())
            if password:
                server.login(settings.user or settings.sender, password)
            server.send_message(letter)

    return Channel("email", settings.host, send)


def _is_final(error: Exception, wait: float) -> bool:
    """Whether a message would not arrive later, after a wait [s] for the attempt before. A recipient may be refused for
    a while, but not so long that others' messages wait for it."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return wait >= LONGEST_WAIT_S or all(code >= 500 for code, _ in error.recipients.values())
    if isinstance(error, HTTPError):
        return 400 <= error.code < 500 and error.code not in _AGAIN
    return isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500


def channels(settings: WebSettings) -> list[Channel]:
    """Where messages go. Raises ConfigError for a password that is missing."""
    posts = [] if settings.webhook is None else [webhook(settings.webhook)]
    password = settings.secret("web.email.password_env")
    return posts if settings.email is None else [*posts, mail(settings.email, password)]


class EndMessages:
    """Delivers the ends of jobs to a channel in order, each at least once, over restarts too."""

    def __init__(self, channel: Channel, store: Store, commit: GroupCommit, notifier: EventNotifier) -> None:
        self._channel, self._store, self._commit, self._notifier = channel, store, commit, notifier
        self._done = 0  # newer than what is noted by events that need no delivery

    async def run(self) -> None:
        """Deliver until the service closes."""
        while not self._notifier.closing:
            try:
                await self._catch_up()
            except StoreError as busy:
                _LOG.error("%s: %s", self._channel.name, busy)
                await asyncio.sleep(FIRST_WAIT_S)
                continue
            await self._notifier.wait(_LOOK_S)

    async def _catch_up(self) -> None:
        """Deliver what has happened since the newest event that is noted; before there was one, nothing."""
        noted = self._store.fact(self._channel.name)
        if noted is None:
            await self._note(last_event(self._store))
            return
        done = max(self._done, int(noted))
        while events := events_after(self._store, done):
            for event in events:
                if event.kind == "job" and event.body.get("state") in ENDED:
                    await self._deliver(event)
                    await self._note(event.seq)
                done = self._done = event.seq

    async def _note(self, seq: int) -> None:
        await self._commit(lambda store: store.set_fact(self._channel.name, str(seq)))

    async def _deliver(self, event: Event) -> None:
        """Send until it is taken, or refused for good."""
        channel, wait = self._channel, FIRST_WAIT_S
        row = get_job(self._store, event.job or "")
        if row is None:
            return
        owner = get_user(self._store, row.owner)
        while True:
            try:
                await asyncio.to_thread(channel.send, row, owner, f"{row.id}-{event.seq}")
                return
            except (OSError, HTTPException) as error:
                code = getattr(error, "code", getattr(error, "smtp_code", None))
                said = f"{channel.name} at {channel.place}: "
                said += type(error).__name__ if code is None else f"it answers {code}"
                if _is_final(error, wait):
                    _LOG.error("%s to the end of job %s, which is left out", said, event.job)
                    return
            _LOG.warning("%s; tried again in %g s", said, wait)
            await asyncio.sleep(wait)
            wait = min(2.0 * wait, LONGEST_WAIT_S)


def _text(row: JobRow) -> str:
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.name} ({row.id}) of {row.owner} {row.state}{reason}"
