"""The notes product's endpoints: JSON in, a status and JSON out, where a web framework would stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pydantic import BaseModel, ValidationError
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from baukit_sync import ClockDriftError, SyncError
from baukit_sync.demo import product
from baukit_sync.demo.messages import Pull, Push
from baukit_sync.wire import error_response


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    body: str


class Api:
    """The endpoints. A real one takes ``owner_id`` from the authenticated session, never from the request."""

    def __init__(self, engine: Engine, now: Callable[[], datetime]) -> None:
        self._sessions = sessionmaker(engine)
        self._now = now

    def push(self, owner_id: UUID, body: str) -> Answer:
        """Answer ``POST /push``."""
        return self._answer(
            lambda session: product.push(session, owner_id, Push.model_validate_json(body), now=self._now())
        )

    def pull(self, owner_id: UUID, request: Pull) -> Answer:
        """Answer ``GET /pull?cursor=&through=&rebuild=&limit=``."""
        return self._answer(lambda session: product.pull(session, owner_id, request))

    def _answer(self, endpoint: Callable[[Session], BaseModel]) -> Answer:
        try:
            with self._sessions.begin() as session:
                answer = endpoint(session)
        except ClockDriftError as error:
            return Answer(422, json.dumps({"code": error.code, "message": "Set your clock"}))
        except SyncError as error:
            status, body = error_response(error)
            return Answer(status, json.dumps(body))
        except (ValidationError, IntegrityError):
            # What no device sends: fields of another kind, or an id that is another owner's.
            return Answer(422, json.dumps({"code": "invalid_body", "message": "Send something else"}))
        return Answer(200, answer.model_dump_json())
