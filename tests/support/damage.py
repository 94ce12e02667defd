"""Files damaged on purpose."""


def flip_bit(data: bytes, at: int) -> bytes:
    """`data` with one bit flipped."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
