"""Pages of HTML as tests read them."""

import html.parser


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, its text, and how many cells the rows of its tables have.

    Every tag is closed in its order.
    """

    def __init__(self, content):
        super().__init__()
        self.tags, self.widths, self.text, self._open = [], [], "", []
        self.feed(content)
        assert self._open == []

    @property
    def loads(self):
        """What is loaded from elsewhere."""
        links = [value for _, attributes in self.tags for name, value in attributes.items() if name in LINKS]
        return [link for link in links if not link.startswith("#")]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "img") and not self.cdata_elem:
            self._open.append(tag)
        if tag == "tr":
            self.widths.append(0)
        if tag in ("td", "th"):
            self.widths[-1] += 1

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


LINKS = ("src", "href", "xlink:href")
