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
GAIN = 400.0  # of a hand-made head: logits are written small, so that norms hardly see them


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


def requests(
    count: int, budget: int, *, tokens=(3, VOCAB), seed: int = 5, **sampling: object
) -> list[PreparedRequest]:
    """Random prompts of 3 to 8 tokens from `tokens` (first, end); none is special by default."""
    generator = torch.Generator().manual_seed(seed)

    def prompt() -> tuple[int, ...]:
        length = int(torch.randint(3, 9, (1,), generator=generator))
        return tuple(torch.randint(*tokens, (length,), generator=generator).tolist())

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


def two_moods(target, draft):
    """A GPT-2 of two layers whose laws after each token are prescribed, by weights set by hand.

    `target[v]` and `draft[v]` are laws [V] of the token after v, at full depth and at exit 1. Each
    block's MLP recognises the token in the residual and writes logits beside it; attention adds
    nothing. So whether a draft is accepted can be made to foretell the next one's fate.
    """
    vocab = len(target)
    width = 2 * vocab  # token v's own dimension, then its logit's
    model = random_model(
        "gpt2", vocab_size=vocab, hidden_size=width, num_hidden_layers=2, num_attention_heads=1,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.zero_()
    body = model.transformer
    for norm in (body.ln_f, *(n for block in body.h for n in (block.ln_1, block.ln_2))):
        norm.weight.fill_(1.0)
    spot = torch.arange(vocab)
    body.wte.weight[spot, spot] = 1.0
    model.lm_head.weight[spot, vocab + spot] = GAIN
    hot = float(torch.nn.functional.layer_norm(body.wte.weight[:1], (width,))[0, 0])
    scale = (1 - 1 / width) / (hot * GAIN)  # from a logit to what is written of it
    first = torch.tensor(draft, dtype=torch.float32).clamp(min=1e-5).log()
    second = torch.tensor(target, dtype=torch.float32).clamp(min=1e-5).log()
    for block, written in zip(body.h, (first, second - first), strict=True):
        block.mlp.c_fc.weight[spot, spot] = 10.0
        block.mlp.c_fc.bias.fill_(-5.0 * hot)
        block.mlp.c_proj.weight[spot, vocab:] = written * scale / (5.0 * hot)
    return view_of(model)
