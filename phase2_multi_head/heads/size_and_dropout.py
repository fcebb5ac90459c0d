"""What do the size of a head and dropout of its weights change?

One layer of four heads guesses hidden words. First its heads have 8, 16 or 32 numbers each. (With
d_model = 64 it is customary to take 64 / 4 = 16.) Then each weight is set to 0 with a chance of
0.1 or 0.3 while the model trains. Dropout is said to prevent overfitting, which a model can do only
if it reads the same sentences over and over. So we ask it twice, of all 20,000 sentences, of which
it reads each about once, and of 200.
"""

from functools import partial

from torch import nn

from phase2_multi_head.models import ONE_LAYER_RECIPE
from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared.claims import Numbers
from shared.experiment import Experiment, Run
from shared.grammar.best_reader import excess_loss, questions
from shared.toy_model import MakeAttention
from shared.training.objectives import corpus
from shared.training.recipes import train, variant

STEPS, NUM_HELD_OUT = 400, 150
FEW = 200  # sentences
DROPOUTS = (0.0, 0.1, 0.3)
OTHER_SIZES = (8, 32)  # beside the customary 16


def heads_of_size(d_k: int) -> MakeAttention:
    """Returns what makes multi-head attention with heads of d_k numbers, whatever d_model is."""

    def make(d_model: int, num_heads: int) -> MultiHeadAttention:
        attention = MultiHeadAttention(d_model, num_heads)
        attention.w_q = nn.Linear(d_model, num_heads * d_k)
        attention.w_k = nn.Linear(d_model, num_heads * d_k)
        attention.w_v = nn.Linear(d_model, num_heads * d_k)
        attention.w_o = nn.Linear(num_heads * d_k, d_model)
        return attention

    return make


def measure(run: Run) -> Numbers:
    """Returns nats above the best loss, on held-out sentences with one word hidden."""
    recipe = variant(ONE_LAYER_RECIPE, seed=run.seed, steps=run.steps(STEPS))
    sentences, held_out = corpus()
    gaps = questions(held_out[:NUM_HELD_OUT])
    numbers = {}
    for number in (FEW, len(sentences)):
        for dropout in DROPOUTS:
            make = partial(MultiHeadAttention, dropout=dropout)
            trained = train(recipe, make, run.options.device, sentences[:number])
            numbers[f"{number} sentences, dropout {dropout}"] = excess_loss(trained.logits, gaps)
    for d_k in OTHER_SIZES:
        trained = train(recipe, heads_of_size(d_k), run.options.device)
        numbers[f"heads of {d_k} numbers"] = excess_loss(trained.logits, gaps)
    return numbers


main = Experiment(
    measure,
    answer="With heads of 8, 16 and 32 numbers the model loses {n[heads of 8 numbers]:.3f}, "
    "{n[20000 sentences, dropout 0.0]:.3f} and {n[heads of 32 numbers]:.3f} nats above the best "
    "loss. With dropout of 0, 0.1 and 0.3 it loses {n[20000 sentences, dropout 0.0]:.3f}, "
    "{n[20000 sentences, dropout 0.1]:.3f} and {n[20000 sentences, dropout 0.3]:.3f} if it reads "
    f"new sentences all the time. If it reads {FEW} over and over, it loses "
    f"{{n[{FEW} sentences, dropout 0.0]:.2f}}, {{n[{FEW} sentences, dropout 0.1]:.2f}} and "
    f"{{n[{FEW} sentences, dropout 0.3]:.2f}}.",
    uses="--seed --seeds --quick --device",
)

if __name__ == "__main__":
    main.run()
