"""What both ends of a gRPC connection agree upon.

There is no generated code: a method takes and gives bytes, and the bytes are our own messages.
"""

from typing import TypeAlias

from winnow.deploy.wire.errors import RequestRefusedError, WireError, one_line
from winnow.deploy.wire.message_codec import MAX_MESSAGE, decode, encode
from winnow.deploy.wire.messages import RequestRefusal

SERVICE = "winnow.Wire"
CALL, FETCH, PUT, FOLLOW = "Call", "Fetch", "Put", "Follow"

REFUSAL_KEY = "winnow-refusal-bin"
"""A refusal travels beside gRPC's own status, so that all four methods refuse alike."""

Options: TypeAlias = list[tuple[str, int]]

COMMON_OPTIONS: Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE + 1024),
    ("grpc.max_send_message_length", MAX_MESSAGE + 1024),
    ("grpc.http2.bdp_probe", 0),
]
KEEPALIVE_MS = 4_000
KEEPALIVE_TIMEOUT_MS = 4_000
"""After so long a server lets go of a caller whose machine lost its power."""


def encode_refusal(refused: RequestRefusedError) -> bytes:
    return encode(RequestRefusal(reason=refused.reason, leader=one_line(refused.leader), retry=refused.retry))


def decode_refusal(data: bytes) -> RequestRefusedError:
    try:
        refusal = decode(data, RequestRefusal)
    except WireError:
        return RequestRefusedError("the server refused the request; its reason could not be decoded")
    return RequestRefusedError(refusal.reason, leader=refusal.leader, retry=refusal.retry)


def host_and_port(url: str) -> str:
    """Of an endpoint's URL, grpc://host:port."""
    return url.partition("://")[2]
