"""A task's name is the digest of what it says: one that is delivered twice, by whomever, is known to be the same."""

from hashlib import sha256

import msgspec

from winnow.deploy.wire.messages import WireTask

UNNAMED = "0" * 64


def named(task: WireTask) -> WireTask:
    """The task under its own name."""
    return msgspec.structs.replace(task, id=digest_of(task))


def digest_of(task: WireTask) -> str:
    """The same whatever order its tables are in, and whatever it is called."""
    tables = (sorted(task.parts.items()), sorted((to, sorted(letters.items())) for to, letters in task.letters.items()))
    bare = msgspec.structs.replace(task, id=UNNAMED, parts={}, letters={})
    return sha256(msgspec.msgpack.encode((bare, tables))).hexdigest()
