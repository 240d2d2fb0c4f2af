"""What the store refuses, as an answer to whoever asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from agentgym.serve.faults import ServiceFault
from agentgym.serve.store_records import KeyTaken, StoreFull


@contextmanager
def storing() -> Iterator[None]:
    """Inside the block, a store that is full or knows better is a `ServiceFault`."""
    try:
        yield
    except KeyTaken as error:
        raise ServiceFault(
            HTTPStatus.CONFLICT,
            "key_taken",
            "another job was sent under this idempotency key; use a new key for a new job",
        ) from error
    except StoreFull as error:
        raise ServiceFault(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "storage_full",
            f"{error} Nothing of the request was kept",
            retry_after_s=30,
        ) from error
