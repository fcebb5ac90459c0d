"""Which heads of a published decoder copy, and which rest?

Random tokens mean nothing, so a head that finds something in them follows a rule of place or of repetition. A block of
16 to 40 random tokens is repeated until 96 are there, each sequence with a length of its own (Olsson et al. 2022):

    a b c d | a b c d | a ...     previous     the token before
                                  duplicate    the same token, earlier
                                  induction    the token after it: what came next last time
                                  first        the first token of all, the sink (Xiao et al. 2023)

The score is the mean weight on such places. A head that does not choose has 0.03 to 0.05. How high can a head come that
learned nothing? The control is the same model with the numbers of each of its matrices shuffled. A head is named when
it gives more than half of its weight, which no head of the shuffled model comes near.

    python phase3_visualization/pretrained/repeated_tokens.py
    python phase3_visualization/pretrained/repeated_tokens.py --model gpt2              downloads it

Writes decoder_heads.png to visualizations/plots/phase3/. The default is SmolLM2-135M (see language_model.py).
"""

import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase3_visualization.pretrained.language_model import (
    SMOLLM2,
    LanguageModel,
    add_model,
    load,
    or_exit,
    record,
)
from shared import cli, head_statistics
from shared.attention_utils import causal_mask
from shared.evidence.claims import EXPERIMENT, Claim, Numbers, measures
from shared.visualization_utils import BLUE, GREEN, GREY, HIDDEN, RED, headline, save_plot

SEQUENCES, LENGTH, PERIODS = 8, 96, (16, 40)
NAMED = 0.5  # more than this weight gives a head its name
COLORS = {"previous": BLUE, "duplicate": GREEN, "induction": RED, "first": GREY}
CHOSEN, RANDOM = "best head, held out", "shuffled model, highest score"


def repeated_tokens(known: Tensor, generator: torch.Generator) -> Tensor:
    """Sequences of one repeated block each, of tokens drawn from known (V,) -> (SEQUENCES, LENGTH)."""
    low, high = PERIODS
    periods = torch.randint(low, high + 1, (SEQUENCES,), generator=generator).tolist()
    blocks = (known[torch.randperm(len(known), generator=generator)[:period]] for period in periods)
    return torch.stack([block[torch.arange(LENGTH) % len(block)] for block in blocks])


def role_scores(weights: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Mean weight on the places of each role -> name: (heads,); weights (N, heads, T, T), tokens (N, T)."""
    mask = causal_mask(tokens.size(1)).expand(len(tokens), 1, -1, -1)  # (T, T) -> (N, 1, T, T)
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)  # (N, T) -> (N, T, T)
    return {
        "previous": head_statistics.offset_weight(weights, mask, -1),
        "duplicate": head_statistics.relation_weight(weights, earlier),
        "induction": head_statistics.relation_weight(weights, earlier.roll(1, dims=-1)),  # one key further
        "first": head_statistics.first_weight(weights, mask),
    }


@torch.no_grad()
def weights_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """All heads of all layers, (N, L * H, T, T). ValueError if later tokens are seen, or weights are not to be had."""
    layers = model(tokens, output_attentions=True).get("attentions")
    if not layers or layers[0].triu(1).any():
        kind = model.config.model_type
        raise ValueError(f"a decoder that hands out its weights is needed: got {kind}; try --model {SMOLLM2}")
    return torch.cat(layers, dim=1)  # L x (N, H, T, T) -> (N, L * H, T, T)


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
    return [list(scores)[r] if b > NAMED else "" for b, r in zip(best.tolist(), role.tolist(), strict=True)]


def learned(n: Numbers) -> bool:
    return min(n[f"previous: {CHOSEN}"], n[f"induction: {CHOSEN}"]) >= NAMED and n[RANDOM] <= NAMED / 2


WORLD = {f"previous: {CHOSEN}": 1.0, f"induction: {CHOSEN}": 1.0, "first: share of heads": 0.5, RANDOM: 0.05}
NOTHING = {f"previous: {CHOSEN}": 0.05, f"induction: {CHOSEN}": 0.05, "first: share of heads": 0.0, RANDOM: 0.05}


@measures(
    Claim(
        id="decoder-copies",
        text="A published decoder has heads that look at the token before, and heads that look up what came next last "
        "time, on tokens that mean nothing",
        kind=EXPERIMENT,
        source="Olsson et al. 2022",
        rule="of both kinds the head chosen on one half of the sequences gives 0.5 or more there on the other half; in "
        "the shuffled model no head of any kind has 0.25",
        holds=learned,
        oracle=WORLD,
        null=NOTHING,
        unit=f"mean weights, {SEQUENCES} sequences of {LENGTH} random tokens, SmolLM2-135M",
        control="the same model with the numbers of each matrix shuffled",
        shows=(f"*{CHOSEN}", RANDOM),
    ),
    Claim(
        id="decoder-sinks",
        text="A large part of the heads of a published decoder rests on the first token, whichever that is",
        kind=EXPERIMENT,
        source="Xiao et al. 2023, section 3.1",
        rule="at least a quarter of the heads give it more than half of their weight; in the shuffled model no head of "
        "any kind has 0.25",
        holds=lambda n: n["first: share of heads"] >= 0.25 and n[RANDOM] <= NAMED / 2,
        oracle=WORLD,
        null=NOTHING,
        unit=f"share of 270 heads, {SEQUENCES} sequences of {LENGTH} random tokens, SmolLM2-135M",
        control="the same model with the numbers of each matrix shuffled",
        shows=("first*", RANDOM),
    ),
)
def head_scores(language_model: LanguageModel, tokens: Tensor, generator: torch.Generator) -> Numbers:
    """The best heads, chosen on the first half of the sequences; how many are named; the shuffled model's best."""
    weights = weights_of(language_model.model, tokens)
    first, second = (role_scores(*half) for half in zip(weights.chunk(2), tokens.chunk(2), strict=True))
    control = role_scores(weights_of(shuffled(language_model.model, generator), tokens), tokens)
    roles = named(role_scores(weights, tokens))
    found = {f"{role}: {CHOSEN}": second[role][first[role].argmax()].item() for role in COLORS}
    found |= {f"{role}: heads": roles.count(role) for role in COLORS}
    found["first: share of heads"] = roles.count("first") / len(roles)
    return found | {"all heads": len(roles), RANDOM: max(scores.max().item() for scores in control.values())}


def draw(name: str, scores: dict[str, Tensor], num_heads: int) -> tuple[Figure, str]:
    """A cell for each head in the colour of its name."""
    roles = named(scores)
    fig, ax = plt.subplots(figsize=(8.4, 3.7), layout="constrained")
    for index, role in enumerate(roles):
        layer, head = divmod(index, num_heads)
        ax.add_patch(plt.Rectangle((layer - 0.45, head - 0.45), 0.9, 0.9, color=COLORS.get(role, HIDDEN)))
        if role not in ("", "first"):
            ax.text(layer, head, role[0].upper(), ha="center", va="center", color="white", weight="bold")
    ax.set(xlim=(-0.6, len(roles) / num_heads - 0.4), ylim=(num_heads - 0.4, -0.6), xlabel="layer", ylabel="head")
    ax.set_aspect("equal")
    ax.spines[:].set_visible(False)
    resting, copying = roles.count("first"), roles.count("duplicate") + roles.count("induction")
    title = f"Of {len(roles)} heads {resting} rest on the first token"
    if copying < resting / 2:
        title += "; far fewer look up a repetition"
    key = "grey: first token · P: previous · D: duplicate · I: induction · pale: none of them"
    headline(fig, title, f"{name} (pretrained), random tokens, repeated; more than half of the weight\n{key}")
    return fig, f"{title}. Every head of {name} by layer, named by where more than half of its weight goes."


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = add_model(cli.parser(__doc__), SMOLLM2)
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model or SMOLLM2)
    special = set(language_model.tokenizer.all_special_ids)
    known = torch.tensor([i for i in range(len(language_model.tokenizer)) if i not in special])
    measured = []
    for seed in cli.seeds(options):
        generator = torch.Generator().manual_seed(seed)
        tokens = repeated_tokens(known, generator)
        measured.append(or_exit(parser, head_scores, language_model, tokens, generator))
        if len(measured) == 1 and options.pictures:
            scores = role_scores(weights_of(language_model.model, tokens), tokens)
            picture = draw(language_model.name, scores, language_model.model.config.num_attention_heads)
            save_plot(options, "phase3/decoder_heads", *picture)
    record(options, *measured)
    counts = ", ".join(f"{measured[0][f'{role}: heads']} {role}" for role in COLORS)
    return f"Heads of {language_model.name} with a name, of {measured[0]['all heads']}: {counts}"


if __name__ == "__main__":
    cli.run(main)
