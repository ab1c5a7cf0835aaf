"""The HTML that a page may hold: an allow-list of tags, attributes and styles (bleach), nothing else.

What passes can neither run nor fetch: no script, no event, no address but a link that somebody clicks, no picture
but one that is inside the page. This module does not know where the HTML comes from; all of it is taken as hostile.
"""

import re

import bleach
from bleach.css_sanitizer import CSSSanitizer
from markupsafe import Markup
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from .display import visible

_TAGS = """
a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i
img kbd li ol p pre s small span strong sub summary sup table tbody td tfoot th thead tr u ul
"""
_PROPERTIES = """
background-color border border-bottom border-collapse border-left border-radius border-right border-top color display
font-family font-size font-style font-weight height line-height margin margin-left margin-top max-width
overflow-wrap overflow-x padding padding-left text-align vertical-align white-space width
"""
_STYLES = CSSSanitizer(allowed_css_properties=_PROPERTIES.split())
_EVERYWHERE = {"class", "style", "title", "dir", "lang"}
_BY_TAG = {"td": {"colspan", "rowspan"}, "th": {"colspan", "rowspan", "scope"}, "details": {"open"}}
_NO_ALT = ' alt=""'
_IMAGE = re.compile(r'<img((?: [a-z]+="[^"]*")*)>')  # as bleach writes one
_PICTURE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]*")


def clean_html(html: str) -> Markup:
    """HTML with nothing left that could run or fetch: unknown tags are escaped, other attributes dropped."""
    html = re.sub(r"<style scoped>.*?</style>", "", html, flags=re.DOTALL)  # pandas puts one before each table
    cleaned = bleach.clean(
        visible(html),
        tags=set(_TAGS.split()),
        attributes=_allowed,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=_STYLES,
    )
    return Markup(_IMAGE.sub(_whole_picture, cleaned))


def prose_html(source: str) -> Markup:
    """Markdown as HTML, cleaned alike."""
    renderer = IPythonRenderer(escape=False, exclude_anchor_links=True)
    return clean_html(MarkdownWithMath(renderer=renderer).render(source))


def _whole_picture(match: re.Match[str]) -> str:
    """A picture that is in the page, with an alternative text; a word in place of one that would have to be fetched."""
    if ' src="' not in match[1]:
        return "[a picture that is not in this page]"
    described = re.search(' alt="[^"]', match[1])
    return match[0] if described else f'<img{match[1].replace(_NO_ALT, "")} alt="a picture without a description">'


def _allowed(tag: str, name: str, value: str) -> bool:
    if name in _EVERYWHERE or name in _BY_TAG.get(tag, ()):
        return True
    if tag == "img":
        return name in ("alt", "width", "height") or (name == "src" and bool(_PICTURE.fullmatch(value)))
    return tag == "a" and name == "href" and value.startswith(("https://", "http://", "mailto:", "#"))
