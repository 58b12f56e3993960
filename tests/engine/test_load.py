"""Loading from a folder: family first, self-check always, and what is said about settings."""

import json

import pytest
import torch
from tiny import COMMON, CONFIGS, NAMES, N, build, greedy_policy, library_greedy, prompts
from tiny_files import byte_tokenizer, write_gguf

from selfspec_cli.engine.decoder import Job, decode_plain, decode_speculative
from selfspec_cli.engine.load import (
    LoadOptions,
    load_model,
    load_tokenizer,
    read_config,
    resolve_device,
    resolve_folder,
)
from selfspec_cli.errors import EXIT_INPUT, FamilyError, ModelError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint folder of each family, with a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        build(**{**COMMON, **CONFIGS[name]}).save_pretrained(root / name)
        byte_tokenizer("{{ messages[0].content }}").save_pretrained(root / name)
    return root


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_folder_loads_and_is_checked(name, folders):
    loaded = load_model(LoadOptions(model=str(folders / name), device="cpu"))
    assert loaded.view.num_layers == N
    assert loaded.view.dtype == torch.float32
    assert loaded.view.device.type == "cpu"
    assert 0 < loaded.self_check_error < 1e-5
    assert loaded.notices == ()
    assert loaded.tokenizer("ab").input_ids == loaded.tokenizer("ab").input_ids
    assert not loaded.view.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_reaches_the_weights(dtype, folders):
    loaded = load_model(LoadOptions(model=str(folders / "qwen3"), dtype=dtype, device="cpu"))
    assert str(loaded.view.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3"])
def test_a12_static_cache_setting_is_ignored_with_one_notice(name, folders, tmp_path):
    model = build(**{**COMMON, **CONFIGS[name]})
    model.save_pretrained(tmp_path)
    settings_file = tmp_path / "generation_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    settings_file.write_text(json.dumps(settings | {"cache_implementation": "static"}), "utf-8")
    loaded = load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())
    assert loaded.notices == (
        "cache_implementation 'static' is ignored: selfspec uses its own KV cache",
    )
    job = Job(prompt=prompts(range(9, 10))[0], budget=24)
    policy = greedy_policy(loaded.view)
    plain = decode_plain(loaded.view, job, policy).output
    assert plain == library_greedy(model, job.prompt, 24)
    assert decode_speculative(loaded.view, job, policy, 3, 4)[0].output == plain


@pytest.mark.parametrize(
    ("setting", "expected"), [(2, {2}), ([2, 7], {2, 7}), (None, {2})], ids=str
)
def test_eos_ids_come_from_the_generation_config_then_the_model(setting, expected, tmp_path):
    build(**{**COMMON, **CONFIGS["llama"]}).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) | {"eos_token_id": setting}
    if setting is None:
        del settings["eos_token_id"]
    file.write_text(json.dumps(settings), encoding="utf-8")
    loaded = load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())
    assert loaded.eos_ids == expected


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba", "num_hidden_layers": 6},
        {"model_type": "bert"},
        {"model_type": "of_next_year", "auto_map": {"AutoConfig": "configuration.NextYear"}},
    ],
    ids=["library", "no decoder", "foreign code"],
)
def test_unsupported_family_is_refused_before_any_weight_is_read(config, tmp_path):
    """A folder without weights, of a family the library knows or not: the same message."""
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(FamilyError, match=f"'{config['model_type']}' is not supported") as refused:
        load_model(LoadOptions(model=str(tmp_path)))
    assert refused.value.exit_code == EXIT_INPUT
    assert "Supported families: gemma2, gemma3, gemma3_text, gpt2," in str(refused.value)


def test_text_part_of_a_gemma3_with_vision_is_loaded(tmp_path):
    """Its logits and greedy tokens are the whole model's, and its EOS ids the checkpoint's."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    whole = build(
        "gemma3",
        text_config={**COMMON, **CONFIGS["gemma3"]},
        vision_config=vision,
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
    )
    whole.generation_config.eos_token_id = [2, 7]
    whole.save_pretrained(tmp_path)
    whole.generation_config.eos_token_id = None
    options = LoadOptions(model=str(tmp_path), device="cpu")
    assert read_config(options).model_type == "gemma3_text"
    loaded = load_model(options, tokenizer=object())
    assert 0 < loaded.self_check_error < 1e-5
    assert loaded.eos_ids == {2, 7}
    job = Job(prompt=prompts(range(12, 13))[0], budget=20)
    policy = greedy_policy(loaded.view)
    plain = decode_plain(loaded.view, job, policy).output
    assert plain == library_greedy(whole, job.prompt, 20)
    assert decode_speculative(loaded.view, job, policy, 3, 4)[0].output == plain


def test_model_of_one_layer_has_no_exit_to_draft_from(tmp_path):
    build(**{**COMMON, **CONFIGS["llama"], "num_hidden_layers": 1}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="1 decoder layer; an early exit needs at least 2"):
        read_config(LoadOptions(model=str(tmp_path)))


def test_checkpoint_that_lacks_weights_is_refused(tmp_path):
    """The library would fill them at random and warn."""
    model = build(**{**COMMON, **CONFIGS["llama"]})
    weights = model.state_dict()
    del weights["model.layers.4.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ModelError, match=r"lacks 1 weights .* model\.layers\.4\.mlp\.up_proj"):
        load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())


def test_folder_without_weights_is_one_message(folders, tmp_path):
    config = (folders / "llama" / "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ModelError, match="cannot load the model") as refused:
        load_model(LoadOptions(model=str(tmp_path), device="cpu"))
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"no": "type"}'])
def test_torn_or_foreign_configuration_is_one_message(content, tmp_path):
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="cannot read a model configuration"):
        read_config(LoadOptions(model=str(tmp_path)))


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match="no such folder") as refused:
        resolve_folder(str(tmp_path / "nothing" / "here"))
    assert "nothing" in str(refused.value)


def test_demo_model_not_fetched_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="selfspec demo-model"):
        resolve_folder("demo")


def test_hub_id_is_passed_on():
    assert resolve_folder("owner/name") == "owner/name"


@pytest.mark.parametrize("name", ["quantum", "cuda:x y"])
def test_unknown_device_is_an_input_error(name):
    with pytest.raises(ModelError):
        resolve_device(name)


def test_missing_accelerator_is_named():
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.raises(ModelError, match="no CUDA device"):
        resolve_device("cuda")
    assert resolve_device("auto") == torch.device("cpu")


def test_a41_another_tokenizer_wins(folders, tmp_path):
    byte_tokenizer("other: {{ messages[0].content }}").save_pretrained(tmp_path)
    options = LoadOptions(model=str(folders / "llama"), tokenizer=str(tmp_path))
    assert load_tokenizer(options).chat_template.startswith("other:")


def test_chat_template_of_the_options_wins(folders):
    options = LoadOptions(model=str(folders / "llama"), chat_template="given")
    assert load_tokenizer(options).chat_template == "given"


def test_missing_tokenizer_names_the_way_out(tmp_path):
    build(**{**COMMON, **CONFIGS["llama"]}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="--tokenizer FOLDER"):
        load_tokenizer(LoadOptions(model=str(tmp_path)))


@pytest.mark.parametrize("content", ["", "{", '{"version": "1.0"}', "[1]"])
def test_torn_tokenizer_is_one_message(content, folders, tmp_path):
    for file in (folders / "llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="cannot load a tokenizer"):
        load_tokenizer(LoadOptions(model=str(tmp_path)))


def test_a43_padding_id_decodes_to_nothing(folders):
    tokenizer = load_tokenizer(LoadOptions(model=str(folders / "llama")))
    assert len(tokenizer) == 260
    assert tokenizer.decode([261]) == ""
    assert tokenizer.decode([*tokenizer("ab").input_ids, 263]) == "ab"


@pytest.mark.parametrize("method", ["gptq", "awq", "a_new_method"])
def test_quantised_checkpoint_that_cannot_load_is_refused_by_name(method, folders, tmp_path):
    for file in (folders / "llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=method):
        load_model(LoadOptions(model=str(tmp_path), device="cpu"), tokenizer=object())


def test_a41_gguf_loads_and_another_tokenizer_wins_over_its_own(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    byte_tokenizer("other: {{ messages[0].content }}").save_pretrained(tmp_path / "other")
    options = LoadOptions(
        model=str(tmp_path / "tiny.gguf"),
        tokenizer=str(tmp_path / "other"),
        device="cpu",
    )
    loaded = load_model(options)
    assert loaded.view.num_layers == 3
    assert loaded.self_check_error < 1e-5
    assert loaded.tokenizer.chat_template.startswith("other:")
    assert loaded.tokenizer("hi").input_ids == byte_tokenizer()("hi").input_ids
    job = Job(prompt=prompts(range(9, 10))[0], budget=16)
    policy = greedy_policy(loaded.view)
    plain = decode_plain(loaded.view, job, policy).output
    assert decode_speculative(loaded.view, job, policy, 2, 4)[0].output == plain
    own = load_tokenizer(LoadOptions(model=str(tmp_path / "tiny.gguf")))
    assert own.chat_template is None, "a template was invented"
