"""Temperature: how many of the sentences that a model writes are sentences of the grammar.

The grammar can say of every sentence whether it could have made it (shared/grammar/entropy.py), so quality is counted
and not a matter of taste. A high temperature makes mistakes. Top-p cuts off the many words that are unlikely one by one
and not unlikely together (Holtzman et al. 2020), and temperature then does less harm. The likeliest word each time need
not lead to a likely sentence: that can be seen here, too, since the grammar knows how likely each sentence is.

    python phase4_causal/writing/generation_temperature.py

Writes generation_temperature.png to visualizations/plots/phase4/.
"""

import argparse
import math
import random
import statistics
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from phase4_causal.causal_attention import load_causal_model
from phase4_causal.writing.generate import Sampling, write
from shared import cli, paths
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.grammar.entropy import sentence_log_probability
from shared.toy_language import START_ID, encode, sample_sentence
from shared.toy_model import ToyTransformer
from shared.training import Trained, corpus
from shared.visualization_utils import QUIET, head_color, model_note, save_figure

TEMPERATURES = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
RULES = {"all words": None, "top-p 0.9": 0.9, "top-p 0.5": 0.5}
LABELS = {"accepted": "accepted", "different": "different", "log_probability": "mean ln P"}
NUM_SENTENCES, QUICK_SENTENCES = 200, 20
NUM_PROMPTS, QUICK_PROMPTS, PROMPT_WORDS, DRAWS = 50, 5, 2, 10
LIMIT = 18  # words; the grammar never needs more


@dataclass
class Quality:
    """Of the sentences that were written in one way."""

    accepted: float  # share that the grammar could have made
    different: float  # different sentences as a share of all
    log_probability: float  # ln P by the grammar, mean over the accepted ones, in nats; NaN if there is none


def judge(sentences: list[list[str]]) -> Quality:
    """Ask the grammar about each sentence. Raises ValueError without any."""
    if not sentences:
        raise ValueError("there must be 1 sentence or more to judge: got 0")
    logs = [sentence_log_probability(words) for words in sentences]
    good = [log for log in logs if log > -math.inf]
    return Quality(
        accepted=len(good) / len(logs),
        different=len({tuple(words) for words in sentences}) / len(sentences),
        log_probability=sum(good) / len(good) if good else math.nan,
    )


def measure(model: ToyTransformer, count: int, seed: int) -> dict[str, dict[float, Quality]]:
    """Write `count` sentences from nothing in each way -> rule -> temperature -> quality."""
    start = torch.full((count, 1), START_ID, device=model.positions.device)
    result: dict[str, dict[float, Quality]] = {}
    for name, top_p in RULES.items():
        result[name] = {}
        for temperature in TEMPERATURES:
            if temperature == 0 and top_p is not None:  # the likeliest word is in every nucleus: all rules agree
                result[name][temperature] = result["all words"][temperature]
                continue
            generator = torch.Generator().manual_seed(seed)
            written = write(model, start, Sampling(temperature, top_p=top_p), limit=LIMIT, generator=generator)
            result[name][temperature] = judge(written.sentences())
    return result


def greedy_against_drawn(model: ToyTransformer, count: int, seed: int) -> list[float]:
    """ln P of the greedy sentence less the median of those drawn, nats, for `count` prompts: two held-out words each.

    Of those drawn only sentences count that the grammar accepts, and a greedy one that it does not accept gives -inf;
    NaN where it accepts none of all.
    """
    prompts = [[START_ID, *encode(sentence.words[:PROMPT_WORDS])] for sentence in corpus()[1][:count]]
    tokens = torch.tensor(prompts, device=model.positions.device)  # (count, 3)
    greedy = write(model, tokens, limit=LIMIT).sentences()
    generator = torch.Generator().manual_seed(seed)
    drawn = write(model, tokens.repeat_interleave(DRAWS, dim=0), Sampling(), limit=LIMIT, generator=generator)
    logs = [sentence_log_probability(words) for words in drawn.sentences()]  # DRAWS for each prompt
    differences = []
    for index, words in enumerate(greedy):
        accepted = [log for log in logs[index * DRAWS : (index + 1) * DRAWS] if log > -math.inf]
        usual = statistics.median(accepted) if accepted else -math.inf
        differences.append(sentence_log_probability(words) - usual)
    return differences


def show(result: dict[str, dict[float, Quality]]) -> None:
    print(f"   {'temperature':20}" + "".join(f"{temperature:7g}" for temperature in TEMPERATURES))
    for name, by_temperature in result.items():
        for measure_name in LABELS:
            values = "".join(f"{getattr(quality, measure_name):7.2f}" for quality in by_temperature.values())
            print(f"   {name if measure_name == 'accepted' else '':10}{LABELS[measure_name]:10}{values}")


def grammar_mean(count: int, seed: int) -> float:
    """Mean ln P of sentences that the grammar itself draws, in nats."""
    rng = random.Random(seed)
    return sum(sentence_log_probability(sample_sentence(rng).words) for _ in range(count)) / count


def draw(result: dict[str, dict[float, Quality]], trained: Trained, count: int) -> tuple[Figure, str]:
    """Accepted sentences, and how likely those are, against temperature, a line for each rule."""
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    for color, (name, by_temperature) in enumerate(result.items()):
        qualities = list(by_temperature.values())
        style = {"color": head_color(color), "ms": 4, "label": name}
        axes[0].plot(TEMPERATURES, [q.accepted for q in qualities], "o-", **style)
        axes[1].plot(TEMPERATURES, [q.log_probability for q in qualities], "o-", **style)
    axes[1].axhline(grammar_mean(1000, 0), color=QUIET, linestyle=":", label="the grammar's own")
    axes[0].set(title="sentences that the grammar accepts", ylabel="share of all sentences", ylim=(-0.03, 1.03))
    axes[1].set(title="mean ln P of those accepted", ylabel="nats")
    for ax in axes:
        ax.set_xlabel("temperature")
        ax.grid(color=QUIET, alpha=0.15)
    axes[1].legend(frameon=False, title="drawn from", loc="lower right")
    plain, nucleus = result["all words"], result["top-p 0.9"]
    shares = [", ".join(f"{rule[t].accepted:.0%}" for t in (0.5, 1.0, 2.0)) for rule in (plain, nucleus)]
    title = f"Accepted at temperature 0.5, 1, 2: {shares[0]}; with top-p 0.9: {shares[1]}"
    fig.suptitle(title, fontsize=12)
    model_note(
        fig,
        f"{trained.label}, seed {trained.recipe.seed} · {count} sentences for each point, from <start> on; "
        "at temperature 0 all are the same",
    )
    return fig, f"{title}. Share of accepted sentences and their mean log-probability against temperature."


def record_findings(
    result: dict[str, dict[float, Quality]], greedy: list[float], seed: int, options: argparse.Namespace
) -> None:
    likelier = sum(difference > 0 for difference in greedy) / len(greedy)
    plain, nucleus = result["all words"], result["top-p 0.9"]
    findings.record(
        "phase4_causal/writing/generation_temperature.py",
        [
            Finding(
                "temperature-quality",
                "The higher the temperature, the fewer of the sentences are correct",
                "course notes",
                {f"accepted at {t:g}": plain[t].accepted for t in (0.5, 1.0, 2.0)},
                "share of the sentences drawn",
                "the share falls by 0.1 or more from temperature 0.5 to 1, and again from 1 to 2",
                findings.verdict(plain[0.5].accepted - 0.1 >= plain[1.0].accepted >= plain[2.0].accepted + 0.1),
                seeds=[seed],
            ),
            Finding(
                "greedy-sentence",
                "Taking the likeliest word each time leads to a likely sentence",
                "after Holtzman et al. 2020",
                {
                    "greedy accepted": sum(difference > -math.inf for difference in greedy) / len(greedy),
                    "greedy likelier than the median drawn": likelier,
                },
                f"share of {len(greedy)} prompts of {PROMPT_WORDS} words; {DRAWS} drawn for each, ln P by the grammar",
                "it is likelier than the median of the accepted sentences drawn for 0.75 of the prompts or more",
                findings.verdict(likelier >= 0.75),
                seeds=[seed],
            ),
            Finding(
                "top-p-quality",
                "Top-p 0.9 avoids mistakes and costs little variety",
                "after Holtzman et al. 2020",
                {
                    "accepted, all words": plain[1.0].accepted,
                    "accepted, top-p 0.9": nucleus[1.0].accepted,
                    "different, all words": plain[1.0].different,
                    "different, top-p 0.9": nucleus[1.0].different,
                },
                "share of the sentences drawn, temperature 1",
                "the accepted share rises by 0.05 or more, and that of different ones falls by 0.05 or less",
                findings.verdict(
                    nucleus[1.0].accepted >= plain[1.0].accepted + 0.05
                    and nucleus[1.0].different >= plain[1.0].different - 0.05
                ),
                seeds=[seed],
            ),
        ],
        options.output_dir,
    )


def main(argv: list[str] | None = None) -> None:
    options = cli.parse(cli.parser(__doc__), argv)
    trained = load_causal_model(options)
    count = QUICK_SENTENCES if options.quick else NUM_SENTENCES
    result = measure(trained.model, count, options.seed)
    print(f"\n{count} sentences in each way, {trained.label}: shares accepted and different, mean ln P of the accepted")
    show(result)
    figure, caption = draw(result, trained, count)
    path = options.output_dir / paths.PLOTS / "phase4" / f"generation_temperature.{options.format}"
    save_figure(figure, path, caption=caption)
    greedy = greedy_against_drawn(trained.model, QUICK_PROMPTS if options.quick else NUM_PROMPTS, options.seed)
    record_findings(result, greedy, trained.recipe.seed, options)


if __name__ == "__main__":
    cli.run(main)
