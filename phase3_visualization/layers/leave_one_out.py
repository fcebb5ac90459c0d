"""Which words does a guess depend on? What the grammar says, and the experiment on the model: hide them one by one.

Hide a noun or a determiner. The relations of the grammar say where the information about it is: for a determiner in its
noun (number), for a noun in its verb (kind of thing) and in its determiner (number; "the" goes with every noun and says
nothing). Together these words say all that the rest of the sentence says. They are "the words that matter" here.

    leave-one-out   hide word j as well: by how many nats does the loss on the hidden word rise?
    gradient        how fast does the loss change with the embedding of word j?            (both for all other words j)

Leave-one-out looks like the truth itself, and is not: what stands in the sentence twice is not missed once. If "sat" is
hidden, "on the mat" still says that an animal did it. grammar_rise computes exactly, by the probabilities of the
grammar, what a perfect reader would lose. Verbs are not hidden (three other words nearly give a verb away), nor is
"the" (as likely before any noun: no word helps to guess it).

    python phase3_visualization/layers/leave_one_out.py
    python phase3_visualization/layers/leave_one_out.py --sentence "these dogs slept in a soft bed"

How methods that only look at the weights compare: faithfulness.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phase2_multi_head.heads.output_projection import added_by_heads
from phase2_multi_head.multi_head_attention import MultiHeadAttention, load_multi_head_model, split_heads
from shared import cli
from shared.grammar.entropy import hidden_word_distribution, sentence_log_probability
from shared.toy_language import EITHER_DETERMINERS, INDEX, MASK_ID, VOCABULARY, Sentence, encode
from shared.toy_model import ToyTransformer


@dataclass(frozen=True)
class Case:
    """A sentence with a hidden word: its words, the hidden position and the positions that carry information on it."""

    words: tuple[str, ...]
    hidden: int
    relevant: frozenset[int]

    @property
    def others(self) -> list[int]:
        return [j for j in range(len(self.words)) if j != self.hidden]

    @property
    def chance(self) -> float:
        """How likely a guess among the other words is one that matters."""
        return len(self.relevant) / len(self.others)


def related_words(sentence: Sentence, hidden: int) -> frozenset[int]:
    """Positions of the words that carry information about a hidden noun or determiner, from the gold relations."""
    related = set()
    for name in ("determiner-noun", "verb-subject", "verb-place"):
        for i, j in sentence.relations[name]:
            if j == hidden and sentence.words[i] not in EITHER_DETERMINERS:  # its verb, its determiner
                related.add(i)
            if i == hidden and name == "determiner-noun":  # the noun of a hidden determiner
                related.add(j)
    return frozenset(related)


def make_case(sentence: Sentence, kind: int) -> Case:
    """Hide the determiner (0) or the noun (1) of the subject, or of the place (2, 3); instead of "the" the noun."""
    ((_, noun),) = sentence.relations["verb-subject" if kind < 2 else "verb-place"]
    (determiner,) = [i for i, j in sentence.relations["determiner-noun"] if j == noun]
    hidden = noun if kind % 2 or sentence.words[determiner] in EITHER_DETERMINERS else determiner
    return Case(sentence.words, hidden, related_words(sentence, hidden))


def make_cases(sentences: Sequence[Sentence]) -> list[Case]:
    """One hidden word for each sentence, the four kinds in turn."""
    return [make_case(sentence, number % 4) for number, sentence in enumerate(sentences)]


def hide(words: Sequence[str], *positions: int) -> list[int]:
    """Token ids with <mask> at these positions."""
    return [MASK_ID if j in positions else token for j, token in enumerate(encode(tuple(words)))]


def hidden_loss(model: ToyTransformer, tokens: Tensor, case: Case) -> Tensor:
    """-ln p(the hidden word) in nats for each row of tokens (B, T) -> (B,)."""
    logits, _ = model(tokens)
    answer = tokens.new_tensor(encode(case.words)[case.hidden]).expand(len(tokens))
    return F.cross_entropy(logits[:, case.hidden], answer, reduction="none")  # (B, V) -> (B,)


@torch.no_grad()
def leave_one_out(model: ToyTransformer, case: Case) -> Tensor:
    """By how many nats the loss on the hidden word rises when word j is hidden, too -> (T,); 0 for its own position."""
    rows = [hide(case.words, case.hidden, j) for j in range(len(case.words))]
    losses = hidden_loss(model, torch.tensor(rows, device=model.positions.device), case)
    return (losses - losses[case.hidden]).double().cpu()


@torch.enable_grad()
def gradients(model: ToyTransformer, case: Case) -> tuple[Tensor, Tensor]:
    """Length of the gradient of the loss at each word's embedding, and |gradient . embedding| -> (T,) each."""
    seen: list[Tensor] = []
    hook = model.embedding.register_forward_hook(lambda module, inputs, output: seen.append(output))
    try:
        loss = hidden_loss(model, torch.tensor([hide(case.words, case.hidden)], device=model.positions.device), case)
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(loss.sum(), seen)
    product = (gradient * seen[0]).sum(dim=-1)  # (1, T, d_model) -> (1, T)
    return gradient[0].norm(dim=-1).double().cpu(), product[0].abs().detach().double().cpu()


def last_layer_norms(model: ToyTransformer, tokens: Tensor, hidden: int) -> Tensor:
    """|| sum_h a_ij^h v_j^h W_O^h || of the last layer, for the row of the hidden word -> (T,) (Kobayashi et al. 2020).

    The length of what word j adds to the hidden position, all heads together. tokens: (1, T).
    """
    x = model.embed(tokens)
    for block in model.blocks[:-1]:
        x, _ = block(x)
    attention: MultiHeadAttention = model.blocks[-1].attention
    normed = model.blocks[-1].attention_norm(x)
    _, weights = attention(normed)
    value = split_heads(attention.w_v(normed), attention.num_heads)  # (1, T, d_model) -> (1, H, T, d_v)
    weighted = weights[0, :, hidden, :, None] * value[0]  # (H, T, d_v): one row of weights for each head
    return added_by_heads(attention, weighted).sum(dim=0).norm(dim=-1)  # (H, T, d_model) -> (T, d_model) -> (T,)


def grammar_rise(words: Sequence[str], hidden: int, left_out: int) -> float:
    """By how many nats the loss of a perfect reader on the hidden word rises if word left_out is hidden, too.

    ln p(word | all others) - ln p(word | all others but one), the second summed over all words of the language that may
    stand in the other gap. Below 0 where the missing word spoke against the hidden one. ValueError as
    hidden_word_distribution raises it, for a sentence that the grammar cannot make.
    """
    if left_out == hidden:
        return 0.0
    with_word = hidden_word_distribution(words, hidden)[INDEX[words[hidden]]].item()
    joint = torch.zeros(len(VOCABULARY), dtype=torch.float64)
    filled = list(words)
    for other in VOCABULARY:
        filled[left_out] = other
        for number, word in enumerate(VOCABULARY):
            filled[hidden] = word
            joint[number] += math.exp(sentence_log_probability(tuple(filled)))
    without = (joint[INDEX[words[hidden]]] / joint.sum()).item()
    return math.log(with_word / without)


def main(argv: list[str] | None = None) -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--hidden", type=int, default=1, metavar="I", help="position of the hidden word (default: 1)")
    options = cli.parse(parser, argv)
    trained = load_multi_head_model(options)
    words, hidden = tuple(options.words), options.hidden
    if not 0 <= hidden < len(words):
        parser.error(f"--hidden must lie between 0 and {len(words) - 1}: got {hidden}")
    trained.model.eval()
    case = Case(words, hidden, frozenset())
    try:
        exact = [grammar_rise(words, hidden, j) for j in range(len(words))]
    except ValueError as error:
        parser.error(str(error))
    rises, (lengths, _) = leave_one_out(trained.model, case), gradients(trained.model, case)
    print(f'\n"{words[hidden]}" is hidden in "{" ".join(words)}", and one more word; {trained.label}')
    print("                 rise of the loss in nats          gradient at")
    print("   also hidden   perfect reader   the model   its embedding")
    for j in case.others:
        print(f"   {j:2} {words[j]:10} {exact[j]:>14.2f} {rises[j]:>11.2f} {lengths[j]:>15.3f}")


if __name__ == "__main__":
    cli.run(main)
