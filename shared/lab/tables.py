"""What was found? Writes data/claims.md and data/numbers.md.

    python shared/lab/tables.py

Both are made from the claims, which stand in the code beside what measures them, and from the
record. data/claims.md has a line for each finding, which unfolds. data/numbers.md has a row for
each number on record, and to these rows the numbers in README and lessons are links
(pages.py).
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from shared import cli, paths
from shared.claims import DIFFER, FAILS, HOLDS, Claim, all_claims
from shared.lab import findings, pages, record
from shared.lab.plan import SECTIONS, path_of, question_of, scripts

CLAIMS_PAGE = paths.ROOT / "data" / "claims.md"
NUMBERS_PAGE = paths.ROOT / "data" / "numbers.md"
OPENING = """\
# Is it true that ...?

{counts}.

Each line below is one thing that is said about attention, and in how many of ten training runs it
came out true. Open a line to see under which conditions we tried it, the rule by which a run counts
as true, and the script that measures it.

We wrote down every rule, and committed it, before we made the ten runs that decide. (These are
{seeds}: a *seed* is the number that the random start of a run is made from. From one rule,
[pooling-looks](#pooling-looks), we dropped two questions afterwards.) We had made the
rules on ten earlier runs, seeds 0 to 9, and {revised} of the {all} were written or changed after a
look at those. Many rules had also met ten runs more, seeds 100 to 109, an older record. So what
this page shows is that our rules carry over from trial runs to new ones. It does not show how much
of what people say about attention is true, since we chose what to ask. When a rule holds in
all ten runs, it holds in at least 74 % of all possible runs, with 95 % confidence.

A few findings are about models that other people have trained and published. There the seed draws
only what the model reads, or which half of the pairs chooses a head. So these lines say *ten draws*
and not ten runs. Ten draws are still one model,
and say nothing about other models.

The ten runs were made with torch {torch}, before the causal model, the readers of a text and some
others got a lower learning rate. For every number that they measured, [the table of
numbers](numbers.md) has their mean and range, beside the number of seed 0, which your own run
gives. Both pages are written by [tables.py](../shared/lab/tables.py). What course notes say
wrongly, and what is true instead, has [a page of its own](notes.md).
"""
FINDING = """
<details><summary><a id="{id}"></a><b>{verdict}</b> · {point}</summary>

{conditions}*Source:* {source}.

**A run counts as true if** {rule}.{revised}

**The number that decides,** run by run, where the rule asks for {bar}: {decides}.

Measured by [{script}](../{path}), with [all its numbers](numbers.md#{experiment}). Name: `{id}`

</details>
"""
NUMBERS_OPENING = """\
# Every number on record

**Seed 0** is what you get: run a script without `--seed`, and it prints these numbers, on every
processor, to six digits. (A dash means that it depends on the machine or the moment, as a time
does.)

**Ten other seeds** ({seeds}) begin from other random numbers, and so say how much these matter. The
page has their mean, and the range in which one more seed should fall, nineteen times in twenty (a
95 % prediction interval: the mean and 2.37 standard deviations to both sides). The ten runs were
made with torch {torch}, before the causal model and some others got a lower learning rate, so a few
numbers of seed 0 lie outside their range. The ten values are in [evidence.csv](evidence.csv).
Numbers in README and lessons lead here. Written by [tables.py](../shared/lab/tables.py).
"""
NUMBERS_OF = """
## <a id="{experiment}"></a>{experiment}

{question} [{script}](../{path})

| number | seed 0 | mean of ten others | one more falls in |
|---|---|---|---|
"""
OUT_OF_SAMPLE = """
## What became of the rules

A rule that was made on ten seeds may fit those ten alone. So here is in how many of seeds 0 to 9 \
each rule held, and in how many of {seeds}. {same} of {all} rules held as often as before. Added \
up, the rules held in {now} runs on record, and in {before} before. These changed:

| claim | of seeds 0 to 9 | of {seeds} |
|---|---|---|
{rows}
And what would a single seed have said? The opposite of what most of the ten say in {misled:.0%} \
of all cases; and two single seeds contradict each other in {apart:.0%}.
"""

DROPPED = """
## What we no longer ask

Seven more claims stood here. The course had become too large, so we dropped the experiments that
nobody would miss, and these claims with them. No claim was dropped for its verdict. So that you can
judge this, here is what the ten runs had said. Of all our claims four had come out true in no run,
and two of these four are here. The rules and sources of all seven are in git's history
(`git show 07eb9ee:data/claims.md`).

| what was said | how often it came out true |
|---|---|
| A head that learned to find one fact among few fails more often among many, because softmax \
spreads its weight, and sharper scores win half of the lost answers back. | 0 of 10 runs |
| Heads of a small next-word model rest on the first token of a text. | 0 of 10 runs |
| A published decoder that keeps only a window of tokens does far worse once the first tokens have \
left it, and keeping four of them makes up for most of this. | 10 of 10 draws |
| An induction head looks further back than it ever had to in training. | 10 of 10 runs |
| With sinusoidal positions an induction head goes by positions as well as by words. | \
10 of 10 runs |
| In a cache of 2 bits, keys that are rounded by channel do much less harm than keys that are \
rounded by word. | 10 of 10 draws |
| That training needs the division by √d_k carries over to a real text. | 10 of 10 runs |
"""


def cell(text: str) -> str:
    """Returns text for a cell of a Markdown table: a bar would end it, "<start>" would be HTML."""
    return re.sub(r"(?<!\\)([|<])", r"\\\1", text)


def verdict_of(claim: Claim) -> str:
    """Returns in how many runs the rule held: "10 of 10 runs"."""
    known = record.known(claim)
    of = "draws" if claim.draws else "runs"
    newer = "" if record.verdict(claim) else " (new: not on record yet)"
    return f"{known.held} of {known.seeds} {of}{newer}"


def bar_of(claim: Claim) -> str:
    """Returns the bar that the deciding number is held against, in words."""
    side = "at least" if claim.bar == claim.at_least else "at most"
    return f"{side} {findings.number(claim.bar)}"


def entry(claim: Claim) -> str:
    """Returns a finding as the page has it: verdict and point in a line, and the rest folded."""
    path = path_of(claim.experiment)
    point = cell(escape(claim.point, quote=False))
    decides = "not on record yet"
    if record.verdict(claim):
        decides = findings.judge_claim(claim, record.runs(claim.experiment)).deciding
    revised = f" *After a look at seeds 0 to 9: {claim.revised}.*" if claim.revised else ""
    return FINDING.format(
        id=claim.id,
        verdict=verdict_of(claim),
        point=point,
        conditions=f"{cell(claim.conditions)} " if claim.conditions else "",
        source=cell(claim.source),
        rule=cell(claim.rule),
        revised=cell(revised),
        decides=decides,
        bar=bar_of(claim),
        script=Path(path).name,
        path=path,
        experiment=pages.short_name(claim.experiment),
    )


def in_reading_order(claims: Iterable[Claim]) -> list[Claim]:
    """Returns claims in the order in which the course runs what measures them."""
    order = scripts()
    return sorted(claims, key=lambda claim: order.index(claim.experiment))


def counts_of(claims: Sequence[Claim]) -> str:
    """Returns how many hold, as the front page says it: "Of 40 claims, 33 hold in all …"."""
    counts = Counter(record.verdict(claim).kind for claim in claims)
    all_hold, none_hold, differ = counts[HOLDS], counts[FAILS], counts[DIFFER]
    of = f"Of {counts.total()} claims, {all_hold} hold in all ten runs"
    return f"{of}, {none_hold} in none, and {differ} in some"


def out_of_sample(claims: Sequence[Claim]) -> str:
    """Returns what became of the rules on the seeds of the record, in words and as a table.

    misled is the share of single seeds that say the opposite of what most of the ten say; apart is
    the share of pairs of seeds in which one says the opposite of the other.
    """
    changes, misled, apart = [], [], []
    rows = ""
    for claim in claims:
        verdict = record.verdict(claim)
        change = verdict.held - claim.explored
        changes.append(change)
        if change:
            rows += f"| [{claim.id}](#{claim.id}) | {claim.explored} | {verdict.held} |\n"
        failed = verdict.seeds - verdict.held
        misled.append(min(verdict.held, failed) / verdict.seeds)
        apart.append(verdict.held * failed / math.comb(verdict.seeds, 2))
    return OUT_OF_SAMPLE.format(
        seeds=record.SEEDS_IN_WORDS,
        same=changes.count(0),
        all=len(changes),
        now=sum(record.verdict(claim).held for claim in claims),
        before=sum(claim.explored for claim in claims),
        rows=rows,
        misled=fmean(misled),
        apart=fmean(apart),
    )


def claims_page(claims: Sequence[Claim]) -> str:
    """Returns the whole table as Markdown."""
    on_record = [claim for claim in claims if record.verdict(claim)]
    text = OPENING.format(
        counts=counts_of(on_record),
        seeds=record.SEEDS_IN_WORDS,
        torch=record.made_by(record.SEEDS),
        all=len(claims),
        revised=sum(bool(claim.revised) for claim in claims),
    )
    for phase, folder in paths.PHASES.items():
        text += f"\n## {SECTIONS[phase]}\n"
        for claim in claims:
            if claim.experiment.startswith(folder):
                text += entry(claim)
    tried = [claim for claim in on_record if claim.explored is not None]
    if tried:
        text += out_of_sample(tried)
    return text + DROPPED


def numbers_page() -> str:
    """Returns every number on record as Markdown, a table for each experiment."""
    text = NUMBERS_OPENING.format(seeds=record.SEEDS_IN_WORDS, torch=record.made_by(record.SEEDS))
    last = ""
    for anchor, module, name in pages.rows():
        if module != last:
            path = path_of(module)
            text += NUMBERS_OF.format(
                experiment=pages.short_name(module),
                question=question_of(module),
                script=Path(path).name,
                path=path,
            )
            last = module
        cells = [f'<a id="{anchor}"></a>{cell(name)}', "–", "–", "–"]
        first = record.first_run(module)
        if name in first:
            cells[1] = findings.number(first[name])
        ends = record.interval(module, name)
        if ends:
            mean = fmean(numbers[name] for numbers in record.runs(module))
            cells[2:] = findings.number(mean), findings.between(ends)
        text += f"| {' | '.join(cells)} |\n"
    return text


def write() -> None:
    """Writes both pages."""
    claims = in_reading_order(all_claims())
    texts = {
        CLAIMS_PAGE: claims_page(claims),
        NUMBERS_PAGE: numbers_page(),
    }
    for page, text in texts.items():
        with paths.whole_file(page) as unfinished:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
    print("written: " + ", ".join(paths.shown(page) for page in texts))


@cli.script
def main(argv: list[str] | None = None) -> None:
    cli.parse(cli.parser(__doc__, ""), argv)
    write()


if __name__ == "__main__":
    cli.run(main)
