"""Writes the pages: `python -m docs.literate`."""

import sys

from docs.literate.rows import PageError
from docs.literate.site import write_site

try:
    write_site()
except PageError as error:
    sys.exit(f"error: {error}")
