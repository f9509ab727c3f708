"""Keeps the toy's property out of the harness's own tests, where it would be run bare.

Named on the command line, or through `--targets`, the property is still collected.
"""

collect_ignore_glob = ["fuzz/*"]
