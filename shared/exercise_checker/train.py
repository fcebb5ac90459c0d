"""What a reader wrote is trained as the attention of the toy model: its loss and heads beside the
solution's.

Four matrices without biases stand around the function; WAYS says for which exercises that works,
and how each is called. Both have the same first weights and the same batches, so the function alone
makes the difference. What the loss does not show, the checker says.
"""

import math
import re
import textwrap
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared import checkpoints, training
from shared.exercise_checker.check import DONE, NOT_WRITTEN, check, message_of
from shared.exercise_checker.exercise import Exercise, Function
from shared.grammar import best_reader, roles
from shared.toy_language import PAD_ID, VOCABULARY
from shared.toy_model import MakeAttention, ToyTransformer
from shared.training import LITTLE_DECAY, OBJECTIVES, Recipe, Trained

STEPS, ASKED = 400, 100  # of the training; held-out sentences that are asked
PATIENCE, SLOWER = (
    120,
    4,
)  # refused is a training of more seconds than this, and of so many times the course's own
WIDTH = 88  # of the printed lines
CHANCE = 0.05  # nats: so far apart come the losses of right functions, trained with other seeds
HEADS = 4
Pair = tuple[Tensor, Tensor]  # output (B, T, d_model), weights (B, H, T, T)
Attend = Callable[
    [Function, Tensor, Sequence[Tensor], Tensor], Pair
]  # x (B, T, d_model), w, mask (B, 1, 1, T)


def one_head(function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor) -> Pair:
    """A function that knows no batch is called for each sentence."""
    masks = mask[:, 0].repeat(1, x.size(1), 1)  # (B, 1, T) -> (B, T, T)
    found = [
        function(sentence, *w[:3], visible) for sentence, visible in zip(x, masks, strict=True)
    ]
    output, weights = (torch.stack(parts) for parts in zip(*found, strict=True))
    return output @ w[3], weights[:, None]  # (B, T, T) -> (B, 1, T, T)


def masked_heads(function: Function, x: Tensor, w: Sequence[Tensor], mask: Tensor) -> Pair:
    query, key, value = (
        (x @ matrix).unflatten(-1, (HEADS, -1)).transpose(1, 2) for matrix in w[:3]
    )  # (B, H, T, d_k)
    mask = function(x.size(1), x.size(1)) & mask  # (T, T) & (B, 1, 1, T) -> (B, 1, T, T)
    unit = torch.eye(x.size(1), dtype=x.dtype).expand(
        *query.shape[:2], -1, -1
    )  # the mean of such values: the weights
    weights = F.scaled_dot_product_attention(query, key, unit, mask)
    return (weights @ value).transpose(1, 2).flatten(2) @ w[
        3
    ], weights  # (B, H, T, d_k) -> (B, T, d_model)


class Way(NamedTuple):
    """How a function attends in the model, and what the model learns."""

    attend: Attend
    objective: str = "masked word"
    num_heads: int = HEADS


NEXT = "next word, without a mask"  # of the trainer's: the function itself must hide the future
WAYS = {
    "self_attention": Way(one_head, num_heads=1),
    "multi_head_attention": Way(lambda function, x, w, mask: function(x, *w, HEADS, mask[:, 0, 0])),
    "causal_mask": Way(masked_heads, NEXT),
}


class Attention(nn.Module):
    """Four matrices, and the function of an exercise that attends with them."""

    def __init__(self, way: Way, function: Function, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.way, self.function = way, function
        self.w_q, self.w_k, self.w_v, self.w_o = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pair:
        """x (B, T, d_model), mask of padding (B, 1, 1, T) -> output (B, T, d_model), weights (B, H,
        T, T).
        """
        batch, length, _ = x.shape
        mask = torch.ones(batch, 1, 1, length, dtype=torch.bool) if mask is None else mask
        w = [layer.weight.T for layer in (self.w_q, self.w_k, self.w_v, self.w_o)]
        output, weights = self.way.attend(self.function, x, w, mask)
        for tensor, shape in (
            (output, x.shape),
            (weights, (batch, self.way.num_heads, length, length)),
        ):
            if tensor.shape != shape or tensor.dtype != x.dtype:
                raise ValueError(
                    f"it gives {tensor.dtype} {tuple(tensor.shape)} instead of {x.dtype} {tuple(shape)}"
                )
            if not tensor.isfinite().all():
                raise ValueError("it gives NaN or infinite numbers")
        return output, weights


# ---- what it loses and finds


def one_step(recipe: Recipe, make: MakeAttention, sentences: int) -> tuple[ToyTransformer, float]:
    """One step with so many sentences -> the model with its gradients, and the seconds that the
    step took.

    They are seconds of CPU time, which do not pass while another program has its turn.
    """
    batch = training.to_batch(training.corpus()[0][:sentences], recipe.objective)
    model = training.new_model(recipe, make)
    start = time.process_time()
    OBJECTIVES[recipe.objective](model, *batch, torch.Generator()).backward()
    return model, time.process_time() - start


def seconds_of_training(recipe: Recipe, make: MakeAttention, sentences: int) -> float:
    """How long a training with so many sentences in each step would take, by the fastest of three
    steps.
    """
    return STEPS * min(one_step(recipe, make, sentences)[1] for _ in range(3))


def in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds > 100 else f"{max(seconds, 1):.0f} s"


def try_out(recipe: Recipe, make: MakeAttention, make_right: MakeAttention) -> str:
    """A few steps -> what to know before the training. Raises ValueError if the training would be
    no use.

    Plain loops may need minutes for a batch, so the first steps have few sentences. A slow computer
    is no reason to refuse: only who needs several times as long as the course's own function can
    save time by fewer loops.
    """
    model, _ = one_step(recipe, make, sentences=2)
    idle = [
        name[:3]
        for name, matrix in model.blocks[0].attention.named_parameters()
        if matrix.grad is None
    ]
    text = (
        f"no gradient reaches {', '.join(idle)}: unused, or cut off by .detach(), .item() or NumPy"
    )
    if len(idle) > 2:
        raise ValueError(text)
    for sentences in (2, 8, recipe.batch_size):
        seconds = seconds_of_training(recipe, make, sentences)
        if seconds > PATIENCE:
            course = seconds_of_training(recipe, make_right, sentences)
            if seconds > SLOWER * course:
                raise ValueError(
                    f"{STEPS} steps of {sentences} sentences would take {in_words(seconds)} of CPU time, and with "
                    f"the course's own function {in_words(course)}: loop less, see --hint 2"
                )
    return f"about {in_words(seconds)} of CPU time" + (f"\n{text}" if idle else "")


@torch.no_grad()
def losses(trained: Trained) -> dict[str, tuple[float, float]]:
    """What was asked -> loss, and that of the grammar, in nats per held-out word."""
    held_out, model = training.corpus()[1], trained.model
    if trained.recipe.objective == NEXT:
        floor, writing = (
            best_reader.next_word_floor(held_out),
            training.word_by_word_loss(model, held_out),
        )
        return {
            "all words at once": (training.held_out_loss(trained), floor),
            "word by word": (writing, floor),
        }
    asked = best_reader.questions(held_out[:ASKED])
    longest = max(tokens.size(1) for tokens, *_ in asked)

    def logits(tokens: Tensor) -> Tensor:
        padded = F.pad(
            tokens, (0, longest - tokens.size(1)), value=PAD_ID
        )  # padding, as in any batch
        return model(padded, mask=(padded != PAD_ID)[:, None, None])[0][:, : tokens.size(1)]

    floor = best_reader.floor(asked)
    return {"a hidden word": (floor + best_reader.excess_loss(logits, asked), floor)}


def named_heads(trained: Trained, make: MakeAttention) -> list[str]:
    """The role of each head, and how often it follows it."""
    halves, lines = roles.halves_of(trained, make), []
    for head, name in enumerate(roles.names_of(halves)[0]):
        rule = roles.nearest_rule(halves, 0, head)
        found = f"{rule.name} {rule.share:.2f}"
        lines.append(found if name == rule.name else f"no role: {found} of {rule.needed:.2f}")
    return lines


def described(error: BaseException, function: Function) -> str:
    """An error as one line, with the line of the function where it happened."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    kind = f"{type(error).__name__} in line {lines[-1]}: " if lines else ""
    said = message_of(error)
    more = "; here all inputs are float32" if re.search("double|float64", said) else ""
    return textwrap.shorten(f"{kind}{said}", 300, placeholder=" ...") + more


def told(cost: float, too_good: float, *, right: bool) -> str:
    """What the losses mean. cost: above that of the course; too_good: below the floor, all words
    being read at once.
    """
    more = f"it loses {abs(cost):.2f} nats {'more' if cost > 0 else 'less'} than the course's"
    if too_good > CHANCE:
        return (
            f"Too good: {too_good:.2f} nats less than the grammar allows. It sees the word that it is asked for. In "
            f"writing that word is not there yet, and {more}."
        )
    if abs(cost) > CHANCE:
        return f"I{more[1:]}."
    hidden = "" if right else " What is wrong does not show in the loss."
    return f"It loses about as much as the course's: {cost:+.2f} nats, less than another seed may make.{hidden}"


def show(yours: Trained, course: Trained, make_right: MakeAttention, *, right: bool) -> None:
    """Losses, heads, and what the losses mean."""
    both, guess = [losses(each) for each in (yours, course)], math.log(len(VOCABULARY))
    print(
        f"\n{'nats per word':20}{'yours':>10}{'the course':>14}{'grammar':>14}{'blind guess':>14}"
    )
    for asked, (loss, floor) in both[0].items():
        print(f"{asked:20}{loss:10.2f}{both[1][asked][0]:14.2f}{floor:14.2f}{guess:14.2f}")
    print(
        "\nThe role of each head, and how often it is followed; where there is none, the nearest, and what that needs"
    )
    for head, names in enumerate(
        zip(*(named_heads(each, make_right) for each in (yours, course)), strict=True)
    ):
        print(f"head {head}    {names[0]:44}{names[1]}")
    (first, floor), (last, _), (aim, _) = (
        next(iter(both[0].values())),
        *(list(each.values())[-1] for each in both),
    )
    print(f"\n{textwrap.fill(told(last - aim, floor - first, right=right), WIDTH)}")


def trained(
    chosen: Sequence[Exercise], exercises: Sequence[Exercise], functions: Mapping[str, Function]
) -> bool:
    """Train the chosen one of these exercises -> whether it is right. ValueError, in one line, if
    it cannot be.
    """
    exercise, name = chosen[0], chosen[0].name
    if len(chosen) > 1 or name not in WAYS:
        fit = [
            f"exercise {n} ({each.name})"
            for n, each in enumerate(exercises, 1)
            if each.name in WAYS
        ]
        takes = " or ".join(fit) or "no exercise of this phase"
        raise ValueError(
            f"--train takes {takes}: the function must be an attention or a mask of the toy model"
        )
    if name not in functions:
        raise ValueError(f"your file has no {name}")
    torch.set_num_threads(1)  # tiny tensors: more threads would only wait for each other
    verdict, way, function = check(exercise, functions[name]), WAYS[name], functions[name]
    if verdict.status == NOT_WRITTEN:
        raise ValueError(f"{name}: {verdict.text}")
    recipe = Recipe(
        f"course_{name}", way.objective, way.num_heads, 1, STEPS, matrix_decay=LITTLE_DECAY
    )
    make, make_right = (partial(Attention, way, each) for each in (function, exercise.solution))
    try:
        warning = try_out(recipe, make, make_right)
        print(
            f"your {name}: {STEPS} steps, {recipe.objective.split(',')[0]}, {warning}", flush=True
        )
        yours = training.train(replace(recipe, name=f"your {name}"), make)
        show(
            yours,
            checkpoints.load_or_train(recipe, make_right),
            make_right,
            right=verdict.status == DONE,
        )
    except (OSError, KeyboardInterrupt):
        raise  # of a disk or a screen, or of who waits
    except BaseException as error:
        known = "" if verdict.status == DONE else f". The checker: {verdict.text}"
        raise ValueError(f"{name} cannot be trained: {described(error, function)}{known}") from None
    print(textwrap.fill(f"The checker: {verdict.text}", WIDTH))
    return verdict.status == DONE
