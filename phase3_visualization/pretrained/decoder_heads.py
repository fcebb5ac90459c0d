"""Which heads of a published decoder copy, and which rest?

Random tokens mean nothing, so a head that finds something in them follows a rule of place or of
repetition. A block of 16 to 40 random tokens is repeated until 96 are there (Olsson et al. 2022). A
head may look at the token before (previous), at the same token earlier (duplicate), at the token
after that (induction), or at the first token of all, the sink (Xiao et al. 2023). It is named where
it gives more than half of its weight. The control is the same model with the numbers of each matrix
shuffled. The default is SmolLM2-135M, which the extra "decoder" brings. Of a hybrid, such as
Qwen3-Next or Jamba, only some layers have attention: their heads are shown, under the numbers of
their layers.
"""

import argparse
import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    add_model,
    check_weights,
    is_default,
    load,
    refuses,
)
from shared import head_statistics
from shared.attention_utils import causal_mask
from shared.evidence.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.visualization_utils import BLUE, GREEN, GREY, HIDDEN, RED

SEQUENCES, LENGTH, PERIODS = 8, 96, (16, 40)
NAMED = 0.5  # more than this weight gives a head its name
COLORS = {"previous": BLUE, "duplicate": GREEN, "induction": RED, "first": GREY}


def repeated_tokens(known: Tensor, generator: torch.Generator) -> Tensor:
    """Sequences of one repeated block each, of tokens drawn from known (V,) -> (SEQUENCES, LENGTH)."""
    low, high = PERIODS
    periods = torch.randint(low, high + 1, (SEQUENCES,), generator=generator).tolist()
    blocks = (known[torch.randperm(len(known), generator=generator)[:period]] for period in periods)
    return torch.stack([block[torch.arange(LENGTH) % len(block)] for block in blocks])


def role_scores(weights: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Mean weight on the places of each role -> name: (heads,); weights (N, heads, T, T), tokens
    (N, T).
    """
    mask = causal_mask(tokens.size(1)).expand(len(tokens), 1, -1, -1)  # (T, T) -> (N, 1, T, T)
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)  # (N, T) -> (N, T, T)
    return {
        "previous": head_statistics.offset_weight(weights, mask, -1),
        "duplicate": head_statistics.relation_weight(weights, earlier),
        "induction": head_statistics.relation_weight(
            weights, earlier.roll(1, dims=-1)
        ),  # one key further
        "first": head_statistics.first_weight(weights, mask),
    }


@torch.no_grad()
def weights_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """All heads of all layers with attention, L of them: (N, L * H, T, T).

    ValueError, one line with a way out, if later tokens are seen or weights are not to be had.
    """
    layers = model(tokens, output_attentions=True).get("attentions") or ()
    check_weights(model, layers, tokens.size(1))
    if layers[0].triu(1).any():
        kind = model.config.model_type
        raise ValueError(
            f"a decoder is needed, and in a model of kind {kind} tokens see later ones; try --model {SMOLLM2}"
        )
    return torch.cat(layers, dim=1)  # L x (N, H, T, T) -> (N, L * H, T, T)


def attention_layers(model: nn.Module, number: int) -> list[int]:
    """Which layers have the attention that was found in so many: all, or those that a hybrid's
    configuration names.

    ValueError if the configuration names another number.
    """
    config = model.config
    if number == config.num_hidden_layers:
        return list(range(number))
    found = []
    for layer, kind in enumerate(getattr(config, "layer_types", ())):
        if kind.endswith("attention") and kind != "linear_attention":  # linear: it has no weights
            found.append(layer)
    if len(found) != number:
        raise ValueError(
            f"a model of kind {config.model_type} hands out weights of {number} layers, and its configuration names "
            f"{len(found)}: it is not known here which they are; try --model {SMOLLM2}"
        )
    return found


@torch.no_grad()
def shuffled(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy in which the numbers of each parameter are the same, in another order."""
    result = copy.deepcopy(model)
    for parameter in result.parameters():
        order = torch.randperm(parameter.numel(), generator=generator)
        parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return result


def named(scores: dict[str, Tensor]) -> list[str]:
    """The role of each head in which it has more than NAMED; "" without one."""
    best, role = torch.stack(list(scores.values())).max(dim=0)  # 4 x (heads,) -> (heads,)
    return [
        list(scores)[r] if b > NAMED else ""
        for b, r in zip(best.tolist(), role.tolist(), strict=True)
    ]


def head_scores(
    model: nn.Module, tokens: Tensor, generator: torch.Generator
) -> tuple[Numbers, list[str]]:
    """The best heads, chosen on the first half of the sequences; how many are named; the shuffled
    model's best. Roles.

    The roles are those of all heads, layer by layer of those with attention; "" for none.
    """
    weights = weights_of(model, tokens)
    first, second = (
        role_scores(*half) for half in zip(weights.chunk(2), tokens.chunk(2), strict=True)
    )
    control = role_scores(weights_of(shuffled(model, generator), tokens), tokens)
    roles = named(role_scores(weights, tokens))
    found = {
        f"{role}, best head": second[role][first[role].argmax()].item()
        for role in ("previous", "induction")
    }
    found |= {f"{role}, heads": roles.count(role) for role in COLORS}
    found["first, share of heads"] = roles.count("first") / len(roles)
    found["all heads"] = len(roles)
    found["highest score in the shuffled model"] = max(
        scores.max().item() for scores in control.values()
    )
    return found, roles


@refuses
def measure(run: Run) -> Numbers:
    """Mean weights of 270 heads on 8 sequences of 96 random tokens; one that does not choose has
    0.03 to 0.05.
    """
    language_model = load(run.options.model or SMOLLM2)
    model, generator = language_model.model, torch.Generator().manual_seed(run.seed)
    special = set(language_model.tokenizer.all_special_ids)
    known = torch.tensor([i for i in range(len(language_model.tokenizer)) if i not in special])
    found, roles = head_scores(model, repeated_tokens(known, generator), generator)
    num_heads, num_layers = model.config.num_attention_heads, model.config.num_hidden_layers
    layers = attention_layers(model, len(roles) // num_heads)
    run.shown |= {"model": language_model.name, "roles": roles, "heads": num_heads}
    run.shown |= {"layers": layers, "all layers": num_layers}
    run.shown["gaps"] = " · no cells: without attention" if len(layers) < num_layers else ""
    return found


CLAIMS = (
    Claim(
        id="decoder-copies",
        text="SmolLM2-135M (30 layers of 9 heads) has heads that look at the token before, and heads that look up what "
        "came next last time, on tokens that mean nothing",
        source="Olsson et al. 2022",
        rule="of both kinds the head chosen on one half of the sequences gives 0.5 or more there on the other half; in "
        "the shuffled model no head of any kind gives more than 0.25",
        effect=lambda n: min(n["previous, best head"], n["induction, best head"]),
        at_least=NAMED,
        also=lambda n: n["highest score in the shuffled model"] <= NAMED / 2,
        oracle={"*, best head": 1.0, "highest score in the shuffled model": 0.05},
        null={"*": 0.05},
    ),
    Claim(
        id="decoder-sinks",
        text="A quarter or more of the heads of SmolLM2-135M (30 layers of 9) rest on the first token, whichever it is",
        source="Xiao et al. 2023, section 3.1, of most heads of larger models",
        rule="a quarter or more of the heads give it more than half of their weight; in the shuffled model no head of "
        "any kind gives more than 0.25",
        effect=lambda n: n["first, share of heads"],
        at_least=0.25,
        also=lambda n: n["highest score in the shuffled model"] <= NAMED / 2,
        oracle={"first, share of heads": 0.5, "highest score in the shuffled model": 0.05},
        null={"first, share of heads": 0.0, "highest score in the shuffled model": 0.05},
    ),
)


def picture(results: Results) -> Figure:
    """A cell for each head in the colour of its name."""
    roles, num_heads, layers = (
        results.shown["roles"],
        results.shown["heads"],
        results.shown["layers"],
    )
    fig, ax = plt.subplots(figsize=(8.4, 3.7), layout="constrained")
    for index, role in enumerate(roles):
        row, head = divmod(index, num_heads)
        layer = layers[row]
        ax.add_patch(
            plt.Rectangle((layer - 0.45, head - 0.45), 0.9, 0.9, color=COLORS.get(role, HIDDEN))
        )
        if role not in ("", "first"):
            ax.text(
                layer, head, role[0].upper(), ha="center", va="center", color="white", weight="bold"
            )
    right = results.shown["all layers"] - 0.4
    ax.set(xlim=(-0.6, right), ylim=(num_heads - 0.4, -0.6), xlabel="layer", ylabel="head")
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    return fig


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser, default=SMOLLM2)


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="Of {n[all heads]:.0f} heads of SmolLM2 {n[first, heads]:.0f} rest on the first token",
    note="{shown[model]}, pretrained; random tokens, repeated; more than half of the weight\n"
    "grey: first token · P: previous · D: duplicate · I: induction · pale: none of them{shown[gaps]}",
    answer="Heads of {shown[model]} with a name, of {n[all heads]:.0f}: {n[previous, heads]:.0f} previous, "
    "{n[duplicate, heads]:.0f} duplicate, {n[induction, heads]:.0f} induction, {n[first, heads]:.0f} first",
    options=add_options,
    about=is_default,
)

if __name__ == "__main__":
    main.run()
