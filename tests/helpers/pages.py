"""What pages of the documentation show."""

import re


def blocks(path, languages=r"\w+"):
    """(language, code, output) of a page's blocks; the output is the block of text right after it, or empty."""
    pattern = rf"^```({languages})\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
    return re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
