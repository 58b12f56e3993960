"""Prompts to token ids, as the servers do it: by the model's own template, with one BOS.

The tokenizer is an object handed in (any transformers tokenizer), so this module needs no torch.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from selfspec_cli.records import Request
from selfspec_cli.trace.rows import RowRefusedError

NO_TEMPLATE = "no chat template"
_NOW = re.compile(r"""\bstrftime_now\(\s*(["'])([^"'\\]*)\1\s*\)""")
_MESSAGE_LENGTH = 300  # characters of a template's own message that are kept


class TokenizerLike(Protocol):
    """What is used of a transformers tokenizer."""

    bos_token_id: Any
    eos_token_id: Any
    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        """Return the token ids of a text; `verbose` lets it warn of long ones."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Return the rendered conversation as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A tokenizer with the chat template to use.

    `chat_template` is the text of a Jinja template, or None for the tokenizer's own.
    `template_time` is what templates take for now, or None for the real time: some print the date,
    and a run that is resumed tomorrow must see the prompts it began with.
    """

    tokenizer: TokenizerLike
    chat_template: str | None = None
    template_time: datetime | None = None

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered; a template is never invented."""
        return bool(self.chat_template or getattr(self.tokenizer, "chat_template", None))

    def prompt_ids(self, request: Request) -> tuple[int, ...]:
        """Return the prompt of a request as the model sees it.

        Given ids are taken as they are. Rendered messages are encoded without special tokens: the
        template writes its own. Raw prompts get the special tokens of the tokenizer. Either way a
        BOS that is then doubled at the start is removed, also where a raw prompt began with BOS
        text.

        Raises:
            RowRefusedError: `empty prompt`, `no chat template`, or `chat template refused` with the
                template's own message.
        """
        if request.prompt_token_ids is not None:
            ids = list(request.prompt_token_ids)
        elif request.messages is not None:
            ids = self._one_bos(self.text_ids(self.render(request)))
        else:
            ids = self._one_bos(self.text_ids(request.prompt or "", add_special_tokens=True))
        if not ids:
            raise RowRefusedError("empty prompt")
        return tuple(ids)

    def render(self, request: Request) -> str:
        """Return the messages of a request as text, ending where the assistant begins.

        Raises:
            RowRefusedError: as `prompt_ids`.
        """
        if not request.messages:
            raise RowRefusedError("empty prompt", "no messages")
        if not self.has_template:
            raise RowRefusedError(NO_TEMPLATE)
        template = self._template()
        chosen = {} if template is None else {"chat_template": template}
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(request.messages),
                    tools=None if request.tools is None else list(request.tools),
                    add_generation_prompt=True,
                    tokenize=False,
                    **chosen,
                )
            )
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is foreign code, it raises anything
            message = " ".join(str(error).split()) or type(error).__name__
            raise RowRefusedError("chat template refused", message[:_MESSAGE_LENGTH]) from None

    def _template(self) -> str | None:
        """Text to render with, times filled in; None where the tokenizer takes its own."""
        own = getattr(self.tokenizer, "chat_template", None)
        text = self.chat_template or (own if isinstance(own, str) else None)
        moment = self.template_time
        if text is None or moment is None or _NOW.search(text) is None:
            return self.chat_template
        # Only plain data passes from a caller into a template, so no clock can be handed in.
        return _NOW.sub(lambda call: json.dumps(moment.strftime(call[2])), text)

    def text_ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of a text; none for an empty text, not even a BOS."""
        if not text:
            return []
        # Length is checked against the model, so the tokenizer's own warning is only noise.
        encode = self.tokenizer.encode
        return list(encode(text, add_special_tokens=add_special_tokens, verbose=False))

    def _one_bos(self, ids: Sequence[int]) -> list[int]:
        bos, extra = self.tokenizer.bos_token_id, 0
        if bos is not None:
            while list(ids[extra : extra + 2]) == [bos, bos]:
                extra += 1
        return list(ids[extra:])
