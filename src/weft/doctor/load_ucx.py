# SPDX-License-Identifier: BSD-3-Clause
"""``python -m weft.doctor.load_ucx``: load libucp as weft does, in this process, and print its version or the error."""

import weft


def main() -> None:
    """Print one line."""
    try:
        print(".".join(map(str, weft.ucx_library().version)))
    except weft.LoadError as error:
        print(f"error: {error}")


if __name__ == "__main__":
    main()
