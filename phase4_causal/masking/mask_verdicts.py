"""The findings of mask_patterns.py: each rule with its margin, and what the numbers say to it; no script of its own.

Used by phase4_causal/masking/mask_patterns.py:

    python phase4_causal/masking/mask_patterns.py
"""

import torch

from phase4_causal.masking.masked_heads import (
    BOTH,
    CAUSAL,
    CUT,
    KINDS,
    MARGIN,
    SPREADS,
    Measured,
    previous_token_head,
    received,
)
from phase4_causal.visualize import weights_of
from shared.attention_utils import causal_mask
from shared.evidence import findings
from shared.evidence.findings import Finding
from shared.head_statistics import SINK_THRESHOLD, even_weights, head_statistics, offset_weight
from shared.toy_language import START, TOY_SENTENCE
from shared.training import Trained

EQUAL, SEEN = 1e-12, 0.01  # equal in float64; weight that is not nothing


def spread_findings(every: list[Measured], seeds: list[int]) -> list[Finding]:
    """C107 and C110: what even weights do under the mask already."""
    six = {"no mask": torch.ones(1, 1, 6, 6, dtype=torch.bool), "mask": causal_mask(6)[None, None]}
    toy = {name: head_statistics(even_weights(mask), mask) for name, mask in six.items()}
    of_six = {f"even, 6 words, {n}, {key}": toy[n][key].item() for key in ("entropy", "distance") for n in six}
    values = {f"{name}, {kind}": [found.spread[kind][name] for found in every] for name in SPREADS for kind in KINDS}

    def lower(name: str, factor: float, margin: float) -> bool:
        pairs = [(found.spread[kind][name], found.spread[BOTH][name]) for found in every for kind in (CUT, CAUSAL)]
        return all(masked <= factor * full - margin for masked, full in pairs)

    raw = lower("entropy", 0.9, 0) and lower("distance", 0.9, 0)
    relative = lower("normalised entropy", 1, 0.05) and lower("normalised distance", 1, 0.05)
    keys = received(even_weights(six["mask"]), six["mask"])[0].tolist()
    masked = [found.kinds[CAUSAL] for found in every]
    heads = [torch.cat([received(w, p.mask)[:, 0] for w in p.layers]) for p in masked]  # (L * H,) each
    chance = [received(even_weights(p.mask), p.mask)[0, 0].item() for p in masked]
    chosen = all(bool((h >= e + MARGIN)[h >= SINK_THRESHOLD].all()) for h, e in zip(heads, chance, strict=True))
    above = all(bool((h >= e + MARGIN).any()) for h, e in zip(heads, chance, strict=True))
    return [
        Finding(
            "C107",
            "A causal mask makes attention more local and more focused",
            "course notes",
            of_six | values,
            "mean over rows and heads: nats, positions; normalised: of even weights in the same row",
            "entropy and distance a tenth smaller, and normalised still 0.05 smaller, both when the mask is added to a "
            "trained model's weights and in a model trained with it",
            **findings.conditional(
                raw and relative,
                raw,
                "raw numbers are counted; as a share of what each row may see not all of them are smaller by 0.05",
            ),
            control="even weights under each mask. The model trained with the mask also has another task",
            seeds=seeds,
        ),
        Finding(
            "C110",
            "A causal head that gives much of its weight to the first token has chosen it",
            "course notes; threshold 0.3 of Gu et al. 2024",
            {"even, 6 words, first to last": keys}
            | {f"heads, seed {seed}": h.tolist() for seed, h in zip(seeds, heads, strict=True)}
            | {"even, same sentences": chance},
            "share of all weight that the first token gets (even, 6 words: that each word gets)",
            "even weights on six words stay below 0.3, and every trained head with 0.3 has 0.1 more than even weights",
            **findings.conditional(
                keys[0] < SINK_THRESHOLD and chosen,
                above,
                "it has 0.1 more than even weights under the same mask, which choose nothing",
            ),
            control="even weights on the keys that each row may see",
            seeds=seeds,
        ),
    ]


def bands(found: Measured) -> dict[str, tuple[float, float]]:
    """Mean weight just below and just above the diagonal, of a head made by hand and of the best trained one."""
    layer, head = divmod(int(found.roles[BOTH]["previous word"].argmax()), found.roles[BOTH]["itself"].size(1))
    full = found.kinds[BOTH]
    made = previous_token_head(6)[None, None]
    matrices = {
        "made by hand": (made, torch.ones_like(made, dtype=torch.bool)),
        f"layer {layer} head {head}": (full.layers[layer][:, head : head + 1], full.real),
    }
    return {
        f"{name}, rows are {rows}": tuple(
            offset_weight(w if rows == "queries" else w.mT, mask, offset).item() for offset in (-1, 1)
        )
        for name, (w, mask) in matrices.items()
        for rows in ("queries", "keys")
    }


def role_findings(every: list[Measured], seeds: list[int]) -> list[Finding]:
    """C108, C109 and C111: which roles the mask forbids, and where a role stands in the picture."""
    ahead = {
        kind: [max(offset_weight(w, f.kinds[kind].real, 1).max().item() for w in f.kinds[kind].layers) for f in every]
        for kind in (BOTH, CAUSAL)
    }
    pairs = {
        f"{role}, {kind}": [found.best(kind, role) for found in every]
        for role in ("determiner → noun", "noun → determiner")
        for kind in (BOTH, CAUSAL)
    }
    back = [role for role, can in every[0].possible.items() if "→" in role and can]
    forward = [role for role, can in every[0].possible.items() if "→" in role and not can]
    pairs["untrained or fixed offset"] = [found.base[BOTH]["determiner → noun"] for found in every]
    pairs[f"of {len(back)} directions that look back, survive"] = [sum(map(f.survives, back)) for f in every]
    pairs[f"of {len(forward)} that look ahead, best score, {CAUSAL}"] = [
        max(found.best(CAUSAL, role) for role in forward) for found in every
    ]
    with_it = all(found.survives("determiner → noun") for found in every)
    without = all(found.survives("determiner → noun", BOTH) for found in every)
    band = bands(every[0])
    return [
        Finding(
            "C108",
            "Autoregressive prediction uses a next-token head, one that attends to position i + 1",
            "course notes",
            {f"{kind}, best head": values for kind, values in ahead.items()},
            "mean weight on the next token",
            f"a head of the causal model gives the next token more than {SEEN} on average",
            findings.verdict(min(ahead[CAUSAL]) > SEEN),
            control="the model that sees both sides; its next-token head guesses hidden words, not next ones",
            seeds=seeds,
        ),
        Finding(
            "C109",
            "A head links a determiner to the noun after it",
            "course notes",
            pairs,
            "share of gold pairs by largest weight, best head",
            "the best head is 0.10 above the best untrained head and the best fixed offset, in the model that sees "
            "both sides and in the causal one",
            **findings.conditional(
                with_it and without,
                without,
                "the model sees both sides; under the mask only the noun can look back at its determiner",
            ),
            control="the opposite direction, noun to determiner",
            seeds=seeds,
        ),
        Finding(
            "C111",
            "The band of a previous-token head lies just below the diagonal",
            "course notes",
            {key: list(values) for key, values in band.items()},
            "mean weight just below and just above the diagonal",
            "0.3 more below than above, whether rows are queries or keys",
            **findings.conditional(
                all(below >= above + 0.3 for below, above in band.values()),
                all(below >= above + 0.3 for key, (below, above) in band.items() if "rows are queries" in key),
                "rows are queries and columns are keys, as in all pictures here; transposed, it lies just above",
            ),
            seeds=seeds[:1],
        ),
    ]


def position_findings(
    every: list[Measured], bidirectional: Trained, causal: Trained, seeds: list[int]
) -> list[Finding]:
    """C104 and C106: the last row, and one cell of the mask."""
    words = TOY_SENTENCE.split()
    query, key = words.index("on"), words.index("on") + 1
    free = max(w[:, query, key].max().item() for w in weights_of(bidirectional.model, words))
    masked = max(w[:, query + 1, key + 1].max().item() for w in weights_of(causal.model, [START, *words]))
    hidden = [int((~causal_mask(fed))[query].sum()) for fed in (len(words), query + 1)]
    last = {
        f"{row} row{'' if row == 'last' else 's'}, {kind}, layer {layer}": [f.change[kind][row][layer] for f in every]
        for kind in (BOTH, CAUSAL)
        for row in ("last", "earlier")
        for layer in range(len(every[0].change[kind][row]))
    }
    unchanged = [[max(f.change[kind]["last"]) <= EQUAL for kind in (BOTH, CAUSAL)] for f in every]
    first_layer = [[f.change[kind]["last"][0] <= EQUAL for kind in (BOTH, CAUSAL)] for f in every]
    return [
        Finding(
            "C104",
            "The last position has no future, so the mask changes nothing there",
            "course notes",
            last,
            "largest difference of a weight with the mask on and off, float64",
            "no weight of the last row differs by more than 1e-12, in any layer of both models",
            **findings.conditional(
                all(map(all, unchanged)),
                all(map(all, first_layer)),
                "the layer is the first; what deeper ones read was computed with a view of the future or without",
            ),
            control="the rows before the last one, which the mask does change",
            seeds=seeds,
        ),
        Finding(
            "C106",
            'In "the cat sat on the mat" the mask keeps position 3, "on", from seeing position 4, "the"',
            "course notes",
            {
                "weight 3 to 4 without the mask": free,
                "with it": masked,
                "keys hidden from 3, all words fed": hidden[0],
                "keys hidden from 3, words 0 to 3 fed": hidden[1],
            },
            "largest weight of any head; keys",
            f"without the mask some head has more than {SEEN} there, with it all have exactly 0; and the mask hides "
            "something from position 3 also when only the words so far are fed",
            **findings.conditional(
                free > SEEN and masked == 0 and min(hidden) > 0,
                free > SEEN and masked == 0 and hidden[0] > 0,
                "all words are fed at once, as in training; fed word by word, there is no position 4 to hide",
            ),
            seeds=seeds[:1],
        ),
    ]
