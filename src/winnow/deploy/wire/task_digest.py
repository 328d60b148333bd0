"""A task's name is the digest of what it says: one that is delivered twice, by whomever, is known to be the same."""

from hashlib import sha256

import msgspec

from winnow.deploy.wire.messages import WireTask

NO_TASK_ID = "0" * 64


def with_task_id(task: WireTask) -> WireTask:
    """The task under its own name."""
    return msgspec.structs.replace(task, id=compute_task_id(task))


def compute_task_id(task: WireTask) -> str:
    """The same whatever order its tables are in, and whatever it is called."""
    tables = (
        sorted(task.parts.items()),
        sorted((to, sorted(letters.items())) for to, letters in task.peer_messages.items()),
    )
    bare = msgspec.structs.replace(task, id=NO_TASK_ID, parts={}, peer_messages={})
    return sha256(msgspec.msgpack.encode((bare, tables))).hexdigest()
