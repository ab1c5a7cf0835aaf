"""Templates that insert today's date: one date for a whole stage, and an earlier one for a run that goes on.

transformers gives every chat template a function `strftime_now` (gpt-oss's and Llama 3's call it), which reads the
clock at each rendering: prompts of one run would differ across midnight, and no rerun would give the same ids. Its
stand-in here gives midnight of one date. This module does not know dates that a template reads in another way (an
argument of its own), nor those that a server writes.
"""

from collections.abc import Iterator
from datetime import date, datetime, time

from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from ..errors import InputError


def date_for(encoder: PreTrainedTokenizerBase, wanted: str = "") -> str:
    """The ISO date that the chat template is to insert: `wanted`, or today's; "" where it inserts none.

    Raises InputError where `wanted` is no ISO date.
    """
    try:
        day = date.fromisoformat(wanted) if wanted else date.today()
    except ValueError as error:
        raise InputError(f'template_date is {wanted!r}; expected a date as 2026-01-31, or "" for today') from error
    return day.isoformat() if any("strftime_now" in template for template in templates_of(encoder)) else ""


def hold_date(encoder: PreTrainedTokenizerBase, template_date: str) -> None:
    """Have the encoder's templates insert this ISO date from here on.

    transformers keeps one compiled template a text for all encoders, so a rendering holds its own date each time; it
    passes no function as an argument (5.24: a callable becomes the text `<function>`).
    """
    moment = datetime.combine(date.fromisoformat(template_date), time())
    for template in templates_of(encoder):
        chat_template_utils._compile_jinja_template(template).globals["strftime_now"] = moment.strftime


def templates_of(encoder: PreTrainedTokenizerBase) -> Iterator[str]:
    """The Jinja source of each chat template: none, one, or several by name."""
    templates = encoder.chat_template or {}
    yield from templates.values() if isinstance(templates, dict) else [str(templates)]
