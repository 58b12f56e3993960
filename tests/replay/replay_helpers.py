"""Settings, requests and hand-made checkpoints shared by the tests of this folder."""

import functools

import numpy as np
import torch
from checkpoints import VOCAB, random_model

from selfspec_cli.analysis.walk import PathCoins
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.load import LoadedModel
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.observe import ObservedPath
from selfspec_cli.replay.setting import Setting

EOS = 2  # of the models here


def view_of(model) -> LayerView:
    return LayerView(model, family_of(model.config.model_type))


@functools.cache
def view(model_type: str = "llama") -> LayerView:
    return view_of(random_model(model_type, seed=1))


def setting_of(view: LayerView, eos: int | None = EOS, **options: object) -> Setting:
    loaded = LoadedModel(
        view=view,
        tokenizer=None,
        eos_ids=frozenset() if eos is None else frozenset({eos}),
        self_check_error=0.0,
        notices=(),
        folder="",
    )
    return Setting(loaded=loaded, **options)


def request(
    number: int, prompt: tuple[int, ...], budget: int, completion=None, **sampling: object
) -> PreparedRequest:
    fields = {"finish": "unknown"} | {
        name: sampling.pop(name) for name in ("finish", "stop") if name in sampling
    }
    return PreparedRequest(
        request_id=f"r{number}",
        group_id=f"g{number}",
        task="t",
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        temperature=None,
        sampling=Sampling(**sampling),
        max_tokens=budget,
        content_hash="",
        source="",
        **{"stop": (), **fields},
    )


def requests(count: int, budget: int, *, vocab: int = VOCAB, seed: int = 5, **sampling: object):
    """Random prompts of 3 to 8 tokens, none of them special."""
    generator = torch.Generator().manual_seed(seed)

    def prompt() -> tuple[int, ...]:
        length = int(torch.randint(3, 9, (1,), generator=generator))
        return tuple(torch.randint(3, vocab, (length,), generator=generator).tolist())

    return [request(i, prompt(), budget, **sampling) for i in range(count)]


def coins_of(paths: list[ObservedPath], exits: int, which: str = "accept_given_path"):
    """The walk's paths from observations; `which` may name another score, for broken twins."""
    found = []
    for path in paths:
        coins = getattr(path.scores, which)[:exits].astype(np.float64)
        coins[:, 0] = np.nan
        found.append(
            PathCoins(
                path_id=path.job.path_id,
                request_id=path.job.request.request_id,
                group_id=path.job.request.group_id,
                temperature=path.job.temperature,
                prompt_tokens=path.job.request.prompt_tokens,
                budget=path.job.budget,
                coins=coins,
            )
        )
    return found
