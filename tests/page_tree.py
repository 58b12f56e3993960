"""A page of ours read back: its tags, and the words a reader sees."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tree(HTMLParser):
    """Tags with their attributes and the text of the page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def of(self, tag, **wanted):
        return [
            attrs for name, attrs in self.tags
            if name == tag and all(attrs.get(key.rstrip("_")) == wanted[key] for key in wanted)
        ]  # fmt: skip

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())
