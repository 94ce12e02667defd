"""
# From sources to pages

`python -m docs.literate` writes the pages of the site as Markdown into `docs/written`: one for each
source file, one for each chapter of `docs/pages`, and the reference. Any generator can then build
them; `mkdocs.yml` names the one in use.
"""
