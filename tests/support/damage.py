"""Files that are damaged on purpose."""


def flipped(data: bytes, at: int) -> bytes:
    """`data` with one bit the other way round."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
