"""
# From sources to pages

This folder turns a project into Markdown pages: its source files with the prose beside the code, its
chapters, which can quote the code and the recorded results, and its package as a reference. Any generator can
build a site from the pages. Nothing in here is specific to one project: everything a project configures is in
`site.Site`.
"""
