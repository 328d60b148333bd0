"""A port for a server that others must know before it starts."""

import socket


def free_port() -> int:
    """A port that is given to nobody else before a server listens there, for the next minute.

    A connection that was closed from this port lingers on it (TIME_WAIT). Until then the kernel puts nobody there who
    takes any port, such as an outgoing connection; who asks for this one, with SO_REUSEADDR as servers do, gets it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()
        return port
