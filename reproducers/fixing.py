"""Which fixed implementation cures a site on the loaded tree.

Its source is inlined in reproducer scripts, where the fixes stand in the same file.
"""

from fuzz.edits import EditError, applied
from reproducers.fix import Fix


class NoFix(Exception):
    """No fix fits; says why each does not.

    Attributes:
        written: Whether there is a fix for this site at all.
    """

    def __init__(self, message: str, *, written: bool) -> None:
        super().__init__(message)
        self.written = written


def fitting_fix(fixes: tuple[Fix, ...], site: str) -> Fix:
    """The first fix of a site whose edits fit the loaded tree.

    Raises:
        NoFix: When none does.
    """
    reasons = []
    for fix in fixes:
        if site not in fix.sites:
            continue
        try:
            with applied(*fix.edits):
                return fix
        except EditError as error:
            reasons.append(f"{fix.name!r}: {error}")
    if reasons:
        raise NoFix(f"{'; '.join(reasons)}", written=True)
    raise NoFix(f"nobody has written a fix for {site}", written=False)
