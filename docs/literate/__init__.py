"""
# From sources to pages

Turns the source files of a project into Markdown pages with the prose and the code side by side, its
chapters into pages that can quote them, and its package into a reference. Any generator can then build the
pages. Nothing in this folder is about one project: `site.Site` holds all that a project has to say.
"""
