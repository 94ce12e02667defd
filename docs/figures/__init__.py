"""
# The figures of this site

What is specific to this project: its records, the tables and charts drawn from them, the verdicts on the
claims, and the names that a chapter may quote. `docs/site.py` hands it to the renderer in `docs/literate`.
"""
