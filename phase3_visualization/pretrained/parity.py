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

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from phase3_visualization.pretrained import language_model as published
from phase3_visualization.pretrained.families import BERTS, FAMILIES, read_with_ours
from phase3_visualization.pretrained.language_model import LanguageModel, load_language_model
from shared.evidence.claims import Numbers
from shared.experiment import Experiment, Run

TEXTS = [published.TEXT, "Words!", "Short sentences are padded at the end."]
# In float32 two right programs differ by a few millionths, and a wrong mask makes hundredths.
ROUNDING = 1e-4

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
WIDE = GROUPED | {"head_dim": 10}  # heads that together are wider than the model
WINDOW = {"sliding_window": 3}
ONE_WINDOW = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
MAY_SLIDE = {"use_sliding_window": True}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 3}
SCALED = {"query_pre_attn_scalar": 7}
# Kind -> its configuration, with what its family adds.
TINY: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "xlm-roberta": SIZES,
    "electra": SIZES | {"embedding_size": 10},
    "big_bird": SIZES | {"attention_type": "original_full"},
    "llama": GROUPED,
    "gemma": WIDE,
    "mistral": WIDE | WINDOW,
    "mixtral": GROUPED | WINDOW | EXPERTS,
    "qwen2": GROUPED | ONE_WINDOW | MAY_SLIDE,
    "qwen3": WIDE | ONE_WINDOW | MAY_SLIDE,
    "qwen3_moe": WIDE | WINDOW | MAY_SLIDE | {"num_experts": 3, "num_experts_per_tok": 2},
    "gemma2": WIDE | ONE_WINDOW | SCALED | {"attn_logit_softcapping": 2.0},
    "gemma3_text": WIDE | ONE_WINDOW | SCALED,
    "gpt_oss": WIDE | ONE_WINDOW | EXPERTS,
}


def tiny(kind: str, seed: int = 0, **more: Any) -> LanguageModel:
    """Returns a random model of two layers that reads eight words; more: of its configuration.

    ValueError, one line with a way out, if the library is not installed.
    """
    transformers = published.library()
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    numbers = {word: number for number, word in enumerate(WORDS)}
    raw = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    raw.pre_tokenizer = Whitespace()
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
class Distance:
    """The largest differences between our numbers and the model's own, for all real tokens."""

    weights: float  # of all heads; a weight lies between 0 and 1
    states: float  # of hidden states, as a share of the largest number in the same vector

    @property
    def is_rounding(self) -> bool:
        return self.weights < ROUNDING and self.states < ROUNDING


def in_float64(language_model: LanguageModel) -> LanguageModel:
    """Returns a copy that computes with 15 digits."""
    return replace(language_model, model=copy.deepcopy(language_model.model).double())


def distance(language_model: LanguageModel, texts: list[str]) -> Distance:
    """Reads the texts with their attention and with ours. ValueError for an unknown family."""
    if language_model.model.config.model_type in BERTS:
        language_model = in_float64(language_model)
    ours = read_with_ours(language_model, texts)
    theirs = published.read_texts(language_model, texts)
    # What becomes of padding is nobody's business: only real tokens are compared.
    weights = (ours.weights - theirs.weights).transpose(1, 3)  # -> (B, T, H, L, T)
    weights = weights[theirs.real]  # -> (tokens, H, L, T)
    states = (ours.states - theirs.states)[:, theirs.real]  # -> (L + 1, tokens, d_model)
    # Some tokens of large models have numbers of many thousands, beside which no other token's
    # error would show. So each vector has its own measure.
    sizes = theirs.states[:, theirs.real].abs().amax(dim=-1)  # -> (L + 1, tokens)
    shares = states.abs().amax(dim=-1) / sizes
    return Distance(weights.abs().max().item(), shares.max().item())


def measured(language_model: LanguageModel, texts: list[str]) -> Distance:
    """Returns the distance, and prints it in a line."""
    found = distance(language_model, texts)
    print(
        f"{language_model.name}: weights of all heads differ by {found.weights:.0e} at most, "
        f"hidden states by {found.states:.0e} of their size",
        flush=True,
    )
    return found


def of_all_families(seed: int) -> list[Distance]:
    """Returns the published models that are installed, and a random one of each family."""
    found = []
    if published.installed(published.PACKAGE):
        found.append(measured(load_language_model(), TEXTS))
    else:
        print(f"MiniLM is not installed, and is left out: {published.INSTALL}")
    if published.installed(*published.SMOLLM2_NEEDS):
        found.append(measured(load_language_model(published.SMOLLM2), TEXTS))
    else:
        print(f"SmolLM2 is not installed, and is left out: {published.INSTALL_SMOLLM2}")
    for kind in (*BERTS, *FAMILIES):
        found.append(measured(tiny(kind, seed), TINY_TEXTS))
    return found


@published.refuses
def measure(run: Run) -> Numbers:
    """Returns the largest differences of all models: of a weight, and of hidden states."""
    if run.options.model is None:
        published.library()  # says so if it is missing, before anything else is said
        found = of_all_families(run.seed)
        where = f"{len(found)} models"
    else:
        language_model = load_language_model(run.options.model)
        found = [measured(language_model, TEXTS)]
        where = language_model.name
    run.shown["said"] = "Yes" if all(one.is_rounding for one in found) else "No"
    run.shown["where"] = where
    return {
        "models": len(found),
        "largest difference, weights of all heads": max(one.weights for one in found),
        "largest difference, hidden states": max(one.states for one in found),
    }


main = Experiment(
    measure,
    answer="{shown[said]}: with our attention in {shown[where]} no weight of any head differs by "
    "more than {n[largest difference, weights of all heads]:.0e}, and no hidden state by more than "
    "{n[largest difference, hidden states]:.0e} of its size",
    options=partial(
        published.add_model,
        default=f"MiniLM, {published.SMOLLM2}, and a random one of each family",
    ),
    about=published.is_default,
)

if __name__ == "__main__":
    main.run()
