"""How the files of a directory become those of a tree: what changes, in which order, and what a kill leaves behind.

`paths` which paths a tree may have, `planning` what a restore changes and keeps, `ordering` its steps, `root` the only
code that touches the directory, `journal` the file that a killed restore is finished by, `running` the restore itself,
`stepping` its steps. A tree is listed as a dict of paths and entries, parents before what is in them, as ReadTree lists
it.
"""
