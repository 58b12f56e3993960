"""From a prepared request and a temperature to what the engine needs: a job and its laws."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfspec_cli.engine.decoder import Job
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.load import LoadedModel
from selfspec_cli.engine.policies import Policy, make_policy
from selfspec_cli.engine.stops import stop_check
from selfspec_cli.records import PreparedRequest

API_DEFAULT_TEMPERATURE = 1.0  # of the OpenAI API, where a trace is read at its own temperatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """Processing of one request's target and draft logits at a temperature."""

    target: Processor
    draft: Processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How this run decodes any request: the model and the choices that touch laws."""

    loaded: LoadedModel
    draft_truncation: str = "same"
    seed: int = 0

    def job(self, request: PreparedRequest, budget: int | None = None) -> Job:
        """What to decode, with the request's budget unless another is given."""
        return Job(
            prompt=request.prompt_token_ids,
            budget=request.max_tokens if budget is None else budget,
            eos_ids=self.loaded.eos_ids,
            stopped=stop_check(self.loaded.tokenizer, request.stop),
        )

    def laws(self, request: PreparedRequest, temperature: float) -> Laws:
        """The request's processing at a temperature."""
        sampling = replace(request.sampling, temperature=temperature)
        common = (sampling, self.loaded.view.vocab_size, request.prompt_token_ids)
        eos = sorted(self.loaded.eos_ids)
        target = Processor(*common, eos_ids=eos)
        if self.draft_truncation == "same" or not sampling.truncated:
            return Laws(target=target, draft=target)
        return Laws(target=target, draft=Processor(*common, eos_ids=eos, truncate=False))

    def policy(
        self, request: PreparedRequest, temperature: float, *key: object, max_draft: int = 0
    ) -> Policy:
        """A policy seeded by the request, the temperature and `key` alone."""
        laws = self.laws(request, temperature)
        seed = derive_seed(self.seed, request.request_id, temperature, *key)
        device = self.loaded.view.device
        return make_policy(laws.target, seed, max_draft=max_draft, draft=laws.draft, device=device)


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any values; equal parts give equal seeds on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def temperatures_of(
    request: PreparedRequest, temperatures: Sequence[float] | str
) -> tuple[float, ...]:
    """Temperatures a request is observed at: the swept ones, or its own for `trace`."""
    if not isinstance(temperatures, str):
        return tuple(temperatures)
    own = request.temperature
    return (API_DEFAULT_TEMPERATURE if own is None else own,)
