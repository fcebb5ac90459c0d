"""Which heads of a published decoder copy, and which rest?

Random tokens mean nothing, so a head that finds something in them follows a rule of place or of
repetition. A block of 16 to 40 random tokens is repeated until 96 are there (Olsson et al. 2022). A
head may look at the token before (previous), at the same token earlier (duplicate), at the token
after that (induction), or at the first token of all, the sink (Xiao et al. 2023). It is named where
it gives more than half of its weight. The control is the same model with the numbers of each matrix
shuffled. The default is SmolLM2-135M, which the extra "decoder" brings.

A head that looks at the token before or at what came next may still not matter. So each of them is
taken out (head_prices.py), and then all of them together. A head matters if that costs a tenth of
what copying wins: how much less the later copies cost than the first. The control is as many others
from the same layers.
"""

import copy
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from phase3_visualization.pretrained.head_prices import next_token_loss, without_each
from phase3_visualization.pretrained.language_model import (
    add_model,
    check_weights,
    is_default,
    refuses,
)
from shared import charts, head_statistics
from shared.attention_utils import causal_mask
from shared.claims import Claim, Numbers
from shared.experiment import Experiment, Results, Run
from shared.published import SMOLLM2, load_language_model, writer_of
from shared.visualization_utils import BLUE, GREY, QUIET, WIDE

SEQUENCES, LENGTH = 8, 96
SHORTEST_BLOCK, LONGEST_BLOCK = 16, 40  # the tokens that are repeated
NAMED = 0.5  # more than this weight gives a head its name
# Role of a head -> where it looks, as the picture says it.
ROLES = {
    "previous": "the token before",
    "duplicate": "the same token, earlier",
    "induction": "what followed its earlier copy",
    "first": "the first token",
}
NO_ROLE = ""
LOOKERS = ("previous", "induction")  # the roles that find something
PRICED = 4  # sequences on which heads are taken out
MATTERS = 0.1  # of what copying wins is lost without a head that matters


def repeated_tokens(known: Tensor, generator: torch.Generator) -> Tensor:
    """Sequences of one repeated block each, of tokens from known (V,) -> (SEQUENCES, LENGTH)."""
    periods = torch.randint(SHORTEST_BLOCK, LONGEST_BLOCK + 1, (SEQUENCES,), generator=generator)
    rows = []
    for period in periods:
        block = known[torch.randperm(len(known), generator=generator)[:period]]
        rows.append(block[torch.arange(LENGTH) % period])
    return torch.stack(rows)


def weight_by_role(weights: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Returns for each role the mean weight on its places, (heads,).

    weights (N, heads, T, T), tokens (N, T).
    """
    mask = causal_mask(tokens.size(1)).expand(len(tokens), 1, -1, -1)  # (T, T) -> (N, 1, T, T)
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)  # (N, T) -> (N, T, T)
    one_further = earlier.roll(1, dims=-1)
    return {
        "previous": head_statistics.offset_weight(weights, mask, -1),
        "duplicate": head_statistics.relation_weight(weights, earlier),
        "induction": head_statistics.relation_weight(weights, one_further),
        "first": head_statistics.first_weight(weights, mask),
    }


@torch.no_grad()
def weights_of_decoder(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns all heads of all layers: (N, L * H, T, T).

    ValueError, one line with a way out, if later tokens are seen or weights are not to be had.
    """
    layers = model(tokens, output_attentions=True).get("attentions") or ()
    check_weights(model, layers, tokens.size(1))
    if layers[0].triu(1).any():
        raise ValueError(
            f"a decoder is needed, and in a model of kind {model.config.model_type} tokens see "
            f"later ones; try {SMOLLM2}"
        )
    return torch.cat(layers, dim=1)  # L x (N, H, T, T) -> (N, L * H, T, T)


@torch.no_grad()
def shuffled(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Returns a copy in which the numbers of each parameter are the same, in another order."""
    result = copy.deepcopy(model)
    for parameter in result.parameters():
        order = torch.randperm(parameter.numel(), generator=generator)
        parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return result


def roles_of(by_role: dict[str, Tensor]) -> list[str]:
    """Returns the role of each head in which it has more than NAMED, or NO_ROLE."""
    most, role_numbers = torch.stack(list(by_role.values())).max(dim=0)  # 4 x (heads,) -> (heads,)
    roles = []
    for weight, number in zip(most, role_numbers, strict=True):
        roles.append(list(by_role)[number] if weight > NAMED else NO_ROLE)
    return roles


def looker_numbers(
    writer: nn.Module, tokens: Tensor, roles: Sequence[str], generator: torch.Generator
) -> Numbers:
    """Returns what the heads that look cost in later copies, one at a time and all together.

    tokens (N, T); roles of the heads of all layers. Controls are as many others of their layers.
    """
    heads = [divmod(number, writer.config.num_attention_heads) for number in range(len(roles))]
    lookers = [head for head, role in zip(heads, roles, strict=True) if role in LOOKERS]
    layers = {layer for layer, _ in lookers}
    rest = [head for head in heads if head[0] in layers and head not in lookers]
    drawn = torch.randperm(len(rest), generator=generator)[: len(lookers)]
    others = [rest[number] for number in drawn]
    groups = [[], lookers, others, *([head] for head in lookers)]
    by_token = without_each(writer, tokens, groups, next_token_loss)  # (groups, N, T - 1)
    copies = (tokens == tokens[:, :1]).cumsum(dim=1)[:, :-1]  # in which a token stands, from 1
    of_copies = by_token[:, copies > 1].mean(dim=-1)
    wins = by_token[0, copies == 1].mean() - of_copies[0]
    prices = of_copies - of_copies[0]
    alone = prices[3:]
    matter = (alone >= MATTERS * wins).sum().item()
    return {
        "heads that look": len(lookers),
        "heads that look and matter": matter,
        "heads that look and matter, share": matter / len(lookers),
        "copying wins": wins.item(),
        "price, most of those that look": alone.max().item(),
        "price, median of those that look": alone.median().item(),
        "price, all that look together": prices[1].item(),
        "price, as many others together": prices[2].item(),
    }


def numbers_of(
    model: nn.Module, tokens: Tensor, generator: torch.Generator
) -> tuple[Numbers, list[str]]:
    """Returns the numbers of a model and of its shuffled copy, and the roles of its heads.

    The best heads are chosen on the first half of the sequences, and scored on the second.
    """
    weights = weights_of_decoder(model, tokens)
    half = SEQUENCES // 2
    choosing = weight_by_role(weights[:half], tokens[:half])
    scoring = weight_by_role(weights[half:], tokens[half:])
    roles = roles_of(weight_by_role(weights, tokens))
    control = weight_by_role(weights_of_decoder(shuffled(model, generator), tokens), tokens)
    numbers = {}
    for role in ("previous", "induction"):
        best_head = choosing[role].argmax()
        numbers[f"{role}, best head"] = scoring[role][best_head].item()
    for role in ROLES:
        numbers[f"{role}, heads"] = roles.count(role)
    numbers["first, share of heads"] = roles.count("first") / len(roles)
    numbers["all heads"] = len(roles)
    highest = torch.stack(list(control.values())).max()
    numbers["highest score in the shuffled model"] = highest.item()
    return numbers, roles


@refuses
def measure(run: Run) -> Numbers:
    """Mean weights of 270 heads on random tokens; one that does not choose has 0.03 to 0.05."""
    language_model = load_language_model(run.options.model or SMOLLM2)
    model, tokenizer = language_model.model, language_model.tokenizer
    generator = torch.Generator().manual_seed(run.seed)
    special = tokenizer.all_special_ids
    known = torch.tensor([i for i in range(len(tokenizer)) if i not in special])
    tokens = repeated_tokens(known, generator)
    numbers, roles = numbers_of(model, tokens, generator)
    if set(LOOKERS) & set(roles):
        writer = writer_of(language_model)
        numbers |= looker_numbers(writer, tokens[:PRICED], roles, generator)
    run.shown["model"] = language_model.name.replace("smollm2", "SmolLM2")
    return numbers


CLAIMS = (
    Claim(
        id="decoder-copies",
        text="Some heads of a published decoder look at the token before, and some look up what "
        "came next last time, even on tokens that mean nothing. We asked it of SmolLM2-135M (30 "
        "layers of 9 heads).",
        source="Olsson et al. 2022",
        rule="of both kinds, the head chosen on one half of the sequences gives 0.5 or more of "
        "its weight there on the other half, while in the shuffled model no head of any kind "
        "gives more than 0.25",
        effect=lambda n: min(n["previous, best head"], n["induction, best head"]),
        at_least=NAMED,
        also=lambda n: n["highest score in the shuffled model"] <= NAMED / 2,
        explored=10,
        draws=True,
        oracle={"*, best head": 1.0, "highest score in the shuffled model": 0.05},
        null={"*": 0.05},
    ),
    Claim(
        id="decoder-sinks",
        text="A quarter or more of the heads of a published decoder rest on the first token, "
        "whichever token it is. We asked it of SmolLM2-135M (30 layers of 9 heads).",
        source="Xiao et al. 2023, section 3.1, who found it in most heads of larger models",
        rule="a quarter or more of the heads give the first token more than half of their weight, "
        "while in the shuffled model no head of any kind gives more than 0.25",
        effect=lambda n: n["first, share of heads"],
        at_least=0.25,
        also=lambda n: n["highest score in the shuffled model"] <= NAMED / 2,
        explored=10,
        draws=True,
        oracle={"first, share of heads": 0.5, "highest score in the shuffled model": 0.05},
        null={"first, share of heads": 0.0, "highest score in the shuffled model": 0.05},
    ),
    Claim(
        id="lookers-matter",
        text="Most heads of a published decoder that look at the token before, or at what came "
        "next last time, matter little one at a time, but together they do the copying. We asked "
        "it of SmolLM2-135M (30 layers of 9 heads), by the loss on repeated blocks of random "
        "tokens, with the outputs of heads replaced by their mean.",
        source="Michel et al. 2019 and McGrath et al. 2023 found such heads in other models",
        rule="at most half of these heads cost a tenth or more, one at a time, of what copying "
        "wins (how much less the later copies cost than the first); all of them together cost "
        "half of it or more, and at least twice what as many others from the same layers cost",
        effect=lambda n: n["heads that look and matter, share"],
        at_most=0.5,
        also=lambda n: (
            n["price, all that look together"]
            >= max(n["copying wins"] / 2, 2 * n["price, as many others together"])
        ),
        explored=10,
        draws=True,
        oracle={"*, share": 0.1, "copying wins": 10.0, "*look together": 8.0, "*": 1.0},
        null={"*": 1.0},
        revised="at first a head mattered if it cost more than 95 % of as many others; but among "
        "those are heads of layer 1, which are dear in any text, so that chance set the bar",
    ),
)


def picture(results: Results) -> Figure:
    """Draws how many heads look mostly at each place."""
    fig, ax = plt.subplots(figsize=(WIDE, 3.2), layout="constrained")
    heads = {place: results.each(f"{role}, heads") for role, place in ROLES.items()}
    colors = dict.fromkeys(heads, GREY) | {ROLES["first"]: BLUE}
    charts.bars(ax, heads, colors, number="{:.0f}")
    ax.spines.bottom.set_visible(False)
    ax.set_title("heads that look mostly at", loc="left", fontsize=11, color=QUIET)
    return fig


main = Experiment(
    measure,
    CLAIMS,
    picture,
    title="{n[first, heads]:.0f} of the {n[all heads]:.0f} heads of SmolLM2\n"
    "look mostly at the first token",
    note="{shown[model]}, pretrained\nmostly: more than half of the weight",
    answer="Of the {n[all heads]:.0f} heads of {shown[model]}, {n[induction, heads]:.0f} look up "
    "what came next last time, {n[previous, heads]:.0f} look at the token before, and "
    "{n[first, heads]:.0f} rest on the first token",
    add_options=add_model,
    claims_apply=is_default,
    # A published model has float32, where a score has seven digits; this one is near 0.
    machine_dependent=("highest score in the shuffled model",),
    uses="--seed --seeds",
)

if __name__ == "__main__":
    main.run()
