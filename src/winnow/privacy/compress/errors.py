"""What cannot be read. The reader of a message trusts nothing in it."""


class PacketError(Exception):
    """A message is not what it should be; says why, in one line."""
